"""What trackers are told of a run: its settings, every number of a round and of the results, its files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.trackers import Trackers
from fedstats_app.report.training_record import RoundRecord
from fedstats_app.settings.app_config import AppConfig

# Files that say what a run was and found; statistics and heads stay where they are.
FILES = ("config.json", "results.json", "README.md", "plots/*.png")


@contextmanager
def tracked(config: AppConfig, folder: RunFolder, say: Callable[[str], None]) -> Iterator[Tracking]:
    """Open the trackers that a run names, and end its run in them, however it ends here.

    Raises
    ------
    ValueError
        If a tracker is not installed.
    """
    trackers = Trackers(config.tracker.names, folder.path, folder.run_id, config.to_run_config(), say)
    tracking = Tracking(trackers, folder)
    folder.on_round = tracking.round
    try:
        yield tracking
    except BaseException:
        trackers.finish("failed")
        raise
    for pattern in FILES:
        for path in sorted(folder.path.glob(pattern)):
            trackers.file(path)
    trackers.finish("completed")


class Tracking:
    """Says in a tracker what a run writes into its folder, by the names that it has there.

    ``NAME/KEY`` is a number of rounds.jsonl or results.json, such as ``fed3r/accuracy`` or ``fedcof-probe/bytes_up``;
    NAME is a method, a training or an approach to personal models.

    Parameters
    ----------
    trackers : Trackers
        Which are told.
    folder : RunFolder
        Of the run.
    """

    def __init__(self, trackers: Trackers, folder: RunFolder) -> None:
        self._trackers, self._folder = trackers, folder
        self._told: set[str] = set()

    def round(self, record: RoundRecord) -> None:
        """Tell a round of training, whose step is its number."""
        self._tell(f"{record.start}-{record.stage}", asdict(record), record.round)

    def stage_done(self) -> None:
        """Tell what results.json has and was not told yet, except for rounds of training."""
        results = self._folder.read_results()
        rounds = results.get("rounds", ())
        for section in ("methods", "personal"):
            if section not in results or section in self._told:
                continue
            self._told.add(section)
            if section == "methods":
                for one in rounds:
                    for name, entry in one["methods"].items():
                        self._tell(name, entry, one["round"])
            for name, entry in results[section].items():
                self._tell(name, entry, max(len(rounds), 1))

    def _tell(self, name: str, entry: Mapping[str, object], step: int) -> None:
        """Leave out what is no number, or none that is known."""
        numbers = {key: float(value) for key, value in entry.items() if isinstance(value, int | float)}
        self._trackers.scalars({f"{name}/{key}": one for key, one in numbers.items() if math.isfinite(one)}, step)
