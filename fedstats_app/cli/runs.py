"""`fedstats runs`: what is in a folder of runs."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from fedstats_app.cli.text import printable, table
from fedstats_app.methods import display_name
from fedstats_app.report.comparison import RunLine, list_runs
from fedstats_app.report.run_folder import DEFAULT_OUTPUT_DIR
from fedstats_app.report.text_columns import three_figures
from fedstats_app.storage.files import to_json

_HEADING = ("date (UTC)", "status", "data", "backbone", "methods", "best", "accuracy", "MB", "folder")


def run(arguments: argparse.Namespace) -> int:
    """Print a line per run, the latest first.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    """
    folder = Path(arguments.folder or DEFAULT_OUTPUT_DIR).expanduser()
    found = list_runs(folder)
    if arguments.json:
        print(to_json({"folder": str(folder), "runs": [asdict(one) for one in found]}))
    elif found:
        print(table(_HEADING, [_cells(one) for one in found], left=6))
    else:
        print(f"no run in {folder}")
    return 1 if any(one.status == "damaged" for one in found) else 0


def _cells(one: RunLine) -> tuple[str, ...]:
    return (
        one.date or "-",
        one.status,
        printable(one.data or "-", 24),
        printable(one.backbone or "-", 24),
        "all" if len(one.methods) > 4 else printable(",".join(one.methods) or "-", 24),
        display_name(one.best) or "-",
        "-" if one.accuracy is None else f"{100 * one.accuracy:.2f}",
        "-" if one.wire_bytes is None else three_figures(one.wire_bytes / 1e6),
        printable(one.name, 48),
    )
