"""What trackers are told of a run: its settings, a point per round, what each head is worth, its files."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.trackers import Trackers
from fedstats_app.report.training_record import RoundRecord
from fedstats_app.settings.app_config import AppConfig

MEGABYTE = 1e6
# Files that say what a run was and found; statistics and heads stay where they are.
FILES = ("config.json", "results.json", "README.md", "plots/*.png")
_SCORES = ("accuracy", "macro_accuracy", "macro_f1", "macro_auroc")


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
    """Says in a tracker's names what a run writes into its folder.

    ``server/accuracy/NAME`` is an accuracy on the server's test data, ``clients/accuracy/NAME`` on what clients keep
    for it; ``comm/uplink-mb/NAME`` and ``comm/downlink-mb/NAME`` are megabytes (10^6 bytes) of all clients since the
    start of what has the name: a method, a training or an approach to personal models.

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
        self._up: dict[str, int] = defaultdict(int)
        self._down: dict[str, int] = defaultdict(int)

    def round(self, record: RoundRecord) -> None:
        """Tell a round of training, whose step is its number."""
        name, where = f"{record.start}-{record.stage}", self._where
        self._up[name] += record.bytes_up
        self._down[name] += record.bytes_down + record.bytes_catch_up
        self._tell(
            {
                f"{where}/accuracy/{name}": record.accuracy,
                f"{where}/loss/{name}": record.loss,
                f"clients/train-loss/{name}": record.train_loss,
                f"clients/averaged/{name}": record.num_clients,
                f"clients/failed/{name}": record.num_failed,
                f"comm/uplink-mb/{name}": self._up[name] / MEGABYTE,
                f"comm/downlink-mb/{name}": self._down[name] / MEGABYTE,
                f"time/round-seconds/{name}": record.seconds,
            },
            record.round,
        )

    def stage_done(self) -> None:
        """Tell what results.json has and was not told yet, except for rounds."""
        results = self._folder.read_results()
        where, step = self._where, 1
        for one in results.get("rounds", ()) if "methods" not in self._told else ():
            step = one["round"]
            for name, entry in one["methods"].items():
                uplink = entry["wire_bytes"] / MEGABYTE
                self._tell({f"{where}/accuracy/{name}": entry["accuracy"], f"comm/uplink-mb/{name}": uplink}, step)
        for name, entry in self._new(results, "methods"):
            scores = {f"{where}/{one.replace('_', '-')}/{name}": entry.get(one) for one in _SCORES}
            self._tell({**scores, f"comm/uplink-mb/{name}": entry["wire_bytes"] / MEGABYTE}, step)
        for name, entry in self._new(results, "personal"):
            self._tell(
                {
                    f"clients/personal-accuracy/{name}": entry["accuracy_mean"],
                    f"comm/uplink-mb/personal-{name}": entry["bytes_up"] / MEGABYTE,
                    f"comm/downlink-mb/personal-{name}": entry["bytes_down"] / MEGABYTE,
                },
                0,
            )

    @property
    def _where(self) -> str:
        return str(self._folder.read_results().get("evaluated_on") or "server")

    def _new(self, results: Mapping[str, Any], section: str) -> list[tuple[str, Any]]:
        if section in self._told or section not in results:
            return []
        self._told.add(section)
        return list(results[section].items())

    def _tell(self, values: Mapping[str, float | None], step: int) -> None:
        """Leave out what is not known, or no number."""
        known = {name: float(value) for name, value in values.items() if value is not None}
        self._trackers.scalars({name: value for name, value in known.items() if math.isfinite(value)}, step)
