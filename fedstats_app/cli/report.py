"""`fedstats report`: the page of a run, made again, or one page that compares several."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedstats_app.cli.progress import told
from fedstats_app.report.comparison import write_comparison
from fedstats_app.report.page import write_report


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print its path.

    Raises
    ------
    FileNotFoundError, ValueError
        If a folder is no run's, or damaged.
    """
    folders = [Path(folder).expanduser() for folder in arguments.run_folders]
    output = Path(arguments.output).expanduser() if arguments.output else None
    with told("report") as progress, progress.doing("drawing the page"):
        if len(folders) > 1:
            page = write_comparison(folders, output or Path("comparison.html"))
        else:
            page = write_report(folders[0], output)
    print(page.resolve())
    return 0
