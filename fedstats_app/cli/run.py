"""`fedstats run`: a run in this process, without Ray, servers or further processes."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedstats_app.base.option import ConfigError
from fedstats_app.cli import COULD_NOT_WORK, STOPPED, CommandError
from fedstats_app.cli.settings import read_in_turn, settings_of_app
from fedstats_app.simulation import UnknownFlower, run_on, simulated


def run(arguments: argparse.Namespace) -> int:
    """Run the app and say what `flwr run . --stream` says of it; the run itself says why it failed.

    Raises
    ------
    CommandError, ValueError
        If nothing could be started.
    """
    # As `flwr run .` there, such as in a folder of `fedstats new`.
    config = settings_of_app(Path.cwd()) | read_in_turn([*arguments.run_config, *arguments.settings])
    try:
        run_on(simulated(arguments.supernodes), config)
    except (ConfigError, UnknownFlower) as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        return STOPPED
    except Exception:  # noqa: BLE001  # said in the last line, and in the run folder
        return COULD_NOT_WORK
    return 0
