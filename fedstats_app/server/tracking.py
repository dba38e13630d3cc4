"""What trackers are told of a run: its settings, every number of a round and of the results, its files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.trackers import Trackers
from fedstats_app.settings.app_config import AppConfig

# Files that say what a run was and found; statistics and heads stay where they are.
FILES = ("config.json", "results.json", "README.md", "plots/*.png")


@contextmanager
def tracked(config: AppConfig, folder: RunFolder, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Open the trackers that a run names, tell them its rounds, and end its run in them, however it ends here.

    Numbers have the names that they have in the run folder: ``NAME/KEY`` is one of rounds.jsonl or results.json, such
    as ``fed3r/accuracy`` or ``fedcof-probe/bytes_up``; NAME is a method, a training or an approach to personal models.

    Yields
    ------
    callable
        To be called after every stage: tells what results.json has and was not told yet.

    Raises
    ------
    ValueError
        If a tracker is not installed.
    """
    trackers = Trackers(config.tracker.names, folder.path, folder.run_id, config.to_run_config(), say)
    told: set[str] = set()

    def tell(name: str, entry: Mapping[str, object], step: int) -> None:
        """Leave out what is no number, or none that is known."""
        numbers = {key: float(value) for key, value in entry.items() if isinstance(value, int | float)}
        trackers.scalars({f"{name}/{key}": one for key, one in numbers.items() if math.isfinite(one)}, step)

    def stage_done() -> None:
        results = folder.read_results()
        rounds = results.get("rounds", ())
        entries = [(name, entry, one["round"]) for one in rounds for name, entry in one["methods"].items()]
        for section in ("methods", "personal"):
            found = [(name, entry, max(len(rounds), 1)) for name, entry in results.get(section, {}).items()]
            if found and section not in told:
                told.add(section)
                for one in [*entries, *found] if section == "methods" else found:
                    tell(*one)

    folder.on_round = lambda record: tell(f"{record.start}-{record.stage}", asdict(record), record.round)
    try:
        yield stage_done
    except BaseException:
        trackers.finish("failed")
        raise
    for pattern in FILES:
        for path in sorted(folder.path.glob(pattern)):
            trackers.file(path)
    trackers.finish("completed")
