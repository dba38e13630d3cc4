"""`fedstats report`: the page of a run, made again, or one page that compares several."""

from __future__ import annotations

import argparse
from pathlib import Path

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
    if len(folders) == 1 and not arguments.output:
        print(write_report(folders[0]).resolve())
        return 0
    output = Path(arguments.output or "comparison.html").expanduser()
    page = write_comparison(folders, output) if len(folders) > 1 else write_report(folders[0], output)
    print(page.resolve())
    return 0
