"""A site withdraws: the heads are solved again without it, with the same bits as if it had never been there."""

from pathlib import Path

import fedstats_app
from fedstats_app.server.removal import remove_clients


def main(**settings: object) -> tuple[Path, Path]:
    """Return the run folder before and after."""
    run = fedstats_app.simulate({"num-clients": 10, "save-statistics": "clients", **settings})
    removal = remove_clients(run, ["3"])
    print(f"{removal.num_examples:,} samples of {removal.num_clients} clients are left; new heads: {removal.folder}")
    return run, removal.folder


if __name__ == "__main__":
    main()
