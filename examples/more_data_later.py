"""Data come in versions: a later run adds its clients to the statistics of an earlier one, which are not sent again."""

from pathlib import Path

import fedstats_app
from fedstats_app.cli.demo.sites import make_sites


def main(folder: Path, **settings: object) -> list[int]:
    """Return how many classes the head knows after the first version and after the second."""
    make_sites(folder)  # two folders of images with some classes in common
    runs: list[Path] = []
    for version in ("site-a", "site-b"):
        extend = {"extend": str(runs[-1])} if runs else {}
        data = {"dataset": str(folder / "images" / version), "num-clients": 3, "partitioner": "iid"}
        runs.append(fedstats_app.simulate({**data, **extend, **settings}))
    known = [int(fedstats_app.load(run, "fed3r").head.present.sum()) for run in runs]
    print(f"classes known: {known[0]}, then {known[1]}")
    return known


if __name__ == "__main__":
    main(Path("example-versions").absolute())
