"""`fedstats runs`, `report` and `remove`: what is in run folders, their pages, and heads without a client."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstats_app.base.files import to_json
from fedstats_app.base.runs import DEFAULT_OUTPUT_DIR
from fedstats_app.cli import CommandError
from fedstats_app.cli.terminal import printable, table, told
from fedstats_app.data.paths import without_folders
from fedstats_app.report.method_result import measure_of
from fedstats_app.report.page import write_report
from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.tables import head_title
from fedstats_app.report.text_columns import three_figures

if TYPE_CHECKING:
    from fedstats_app.server.removal import Removal

_HEADING = ("date (UTC)", "status", "data", "backbone", "methods", "best", "accuracy", "MB", "evidence", "folder")


def summary(folder: Path) -> dict[str, Any]:
    """Sum up a run folder: the head to take, with accuracy (0 to 1) and the bytes that all sites sent for it; evidence.

    What is not known is "" or None; a run whose files cannot be read is damaged.
    """
    line: dict[str, Any] = {"name": folder.name, "date": "", "status": "damaged", "data": "", "backbone": ""}
    line |= {"methods": [], "best": "", "accuracy": None, "wire_bytes": None, "num_classes": 0, "num_examples": 0}
    line |= {"evidence": None}
    try:
        run = RunRecord.read(folder)
        return line | {
            "date": str(run.status.get("started", "")).replace("T", " ").removesuffix("Z"),
            "status": str(run.status.get("state", "?")),
            "data": without_folders(str(run.config.get("data", ""))),
            "backbone": without_folders(str(run.config.get("backbone", {}).get("name", ""))),
            "methods": list(run.methods),
            "best": run.taken,
            "accuracy": run.entry.get("accuracy"),
            "measure": list(measure_of(run.entry)),
            "wire_bytes": run.sent or None,
            "num_classes": len(run.class_names),
            "num_examples": int(next(iter(run.methods.values()), {}).get("num_examples", 0)),
            "evidence": run.results.get("evidence"),
        }
    except (ValueError, OSError, KeyError, TypeError):
        return line


def runs(arguments: argparse.Namespace) -> int:
    """Print a line per run, the latest first; 1 if one is damaged.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    """
    folder = Path(arguments.folder or DEFAULT_OUTPUT_DIR).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder")
    found = [summary(status.parent) for status in sorted(folder.glob("*/status.json"), reverse=True)]
    if arguments.json:
        print(to_json({"folder": str(folder), "runs": found}))
    elif found:
        print(table(_HEADING, [_cells(run) for run in found], left=6))
        print("\n".join(compared(found)), end="")
    else:
        print(f"no run in {folder}")
    return 1 if any(run["status"] == "damaged" for run in found) else 0


def compared(runs: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Name the backbone of largest evidence among those that were run on the same data and as many samples."""
    alike: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for run in runs:
        if run["evidence"]:
            key = run["data"], run["num_examples"], run["num_classes"], run["evidence"]["by"]
            alike.setdefault(key, []).append(run)
    for (data, number, classes, by), found in alike.items():
        ranked = sorted(found, key=lambda run: -run["evidence"]["nats"])
        best = {run["backbone"]: run for run in reversed(ranked)}  # of each backbone that of the largest evidence
        if len(best) > 1:
            order = ", ".join(
                f"{name} {run['evidence']['nats']:.4f}"
                for name, run in sorted(best.items(), key=lambda item: -item[1]["evidence"]["nats"])
            )
            yield (
                f"largest evidence ({by}) on {data}, {number:,} samples, {classes} classes: take "
                f"{ranked[0]['backbone']}, in {ranked[0]['name']} ({order})\n"
            )


def _cells(run: dict[str, Any]) -> tuple[str, ...]:
    methods = ",".join(run["methods"]) if len(run["methods"]) <= 4 else "all"
    return (
        run["date"] or "-",
        run["status"],
        *(printable(text or "-", 24) for text in (run["data"], run["backbone"], methods)),
        head_title(run["best"]) or "-",
        _measured(*run.get("measure", ("accuracy", run["accuracy"]))),
        "-" if run["wire_bytes"] is None else three_figures(run["wire_bytes"] / 1e6),
        "-" if run["evidence"] is None else f"{run['evidence']['nats']:.4f}",
        printable(run["name"], 48),
    )


def _measured(measure: str, value: float | None) -> str:
    if value is None or measure == "accuracy":
        return "-" if value is None else f"{100 * value:.2f}"
    return f"{value:.3f} {'R2' if measure == 'R2' else 'mAP'}"


def report(arguments: argparse.Namespace) -> int:
    """Make the page of a run again, and print its path.

    Raises
    ------
    FileNotFoundError, ValueError
        If the folder is no run's, or damaged.
    """
    output = Path(arguments.output).expanduser() if arguments.output else None
    with told("report") as progress, progress.doing("drawing the page"):
        page = write_report(Path(arguments.run_folder).expanduser(), output)
    print(page.resolve())
    return 0


def remove(arguments: argparse.Namespace) -> int:
    """Make the new folder and say where it is, what is in it, and what the old one still holds.

    Raises
    ------
    CommandError, FileNotFoundError, ValueError
        If none is named, the run kept too little, or has no such client.
    """
    from fedstats_app.server.removal import remove_clients

    if not arguments.client:
        raise CommandError("say whom to remove: --client")
    return _solved_again(arguments, lambda folder, output: remove_clients(folder, arguments.client, output))


def edit(arguments: argparse.Namespace) -> int:
    """Make the new folder of a run whose classes are merged, renamed or left out.

    Raises
    ------
    CommandError, FileNotFoundError, ValueError
        If nothing is named, the run kept no statistics, or has no such class.
    """
    from fedstats_app.server.removal import edit_classes

    merged = [[name.strip() for name in group.split(",")] for group in arguments.merge]
    pairs = [pair.partition("=") for pair in arguments.rename]
    if not (merged or pairs or arguments.drop) or not all(old and new for old, _, new in pairs):
        raise CommandError('say what to change: --merge "A,B", --rename OLD=NEW or --drop NAME')
    renamed = {old.strip(): new.strip() for old, _, new in pairs}
    return _solved_again(
        arguments, lambda folder, output: edit_classes(folder, merged, renamed, arguments.drop, output)
    )


def _solved_again(arguments: argparse.Namespace, solve: Callable[[Path, str], Removal]) -> int:
    folder = Path(arguments.run_folder).expanduser()
    output = str(Path(arguments.output_dir).expanduser().resolve()) if arguments.output_dir else ""
    with told(arguments.command) as progress:
        with progress.doing("solving again"):
            removal = solve(folder, output)
        with progress.doing("writing the report"):
            write_report(removal.folder)
    if arguments.json:
        print(to_json(asdict(removal)))
        return 0
    print(f"{removal.num_clients} clients, {removal.num_examples} samples are left")
    for heading, names in (
        ("solved again", removal.methods),
        ("not made again, since only a run can train them", removal.not_made),
    ):
        if names:
            print(f"{heading}: {', '.join(names)}")
    print("the new heads are neither evaluated nor calibrated: fedstats evaluate does the former")
    if arguments.command == "remove":
        print(f"{folder} still holds what was removed; its heads are marked, delete it when you can")
    print(removal.folder)
    return 0
