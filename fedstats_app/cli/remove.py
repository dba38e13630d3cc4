"""`fedstats remove`: the heads of a run without some of its clients, or without a class."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from fedstats_app.cli.progress import told
from fedstats_app.report.page import write_report
from fedstats_app.server.removal import Removal, remove_classes, remove_clients
from fedstats_app.storage.files import to_json


def run(arguments: argparse.Namespace) -> int:
    """Make the new folder and say where it is, what is in it, and what the old one still holds.

    Raises
    ------
    FileNotFoundError, ValueError
        If the run kept too little, or has no such client or class.
    """
    folder = Path(arguments.run_folder).expanduser()
    output = str(Path(arguments.output_dir).expanduser().resolve()) if arguments.output_dir else ""
    with told("remove") as progress:
        with progress.doing("solving again without what is removed"):
            if arguments.client:
                again = Path(arguments.asked_again).expanduser() if arguments.asked_again else None
                removal = remove_clients(folder, arguments.client, output, asked_again=again)
            else:
                removal = remove_classes(folder, arguments.classes, output)
        with progress.doing("writing the report"):
            write_report(removal.folder)
    print(to_json(asdict(removal)) if arguments.json else "\n".join(_lines(removal, folder)))
    return 0


def _lines(removal: Removal, old: Path) -> list[str]:
    lines = [f"{removal.num_clients} clients, {removal.num_examples} samples are left"]
    again = [name for name in removal.methods if name not in removal.masked]
    if again:
        lines.append(f"solved again: {', '.join(again)}")
    if removal.masked:
        lines.append(f"only masked, since samples of all classes are in one matrix: {', '.join(removal.masked)}")
    if removal.not_made:
        lines.append(f"not made again, since only a run can train them: {', '.join(removal.not_made)}")
    lines.append("the new heads are neither evaluated nor calibrated: fedstats evaluate does the former")
    lines.append(f"{old} still holds what was removed; its heads are marked, delete it when you can")
    return [*lines, str(removal.folder)]
