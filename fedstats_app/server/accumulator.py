"""What is noted while clients answer; an interrupted stage 1 continues from what it had summed and noted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedstats_app.grid.kept_statistics import KeptStatistics, LargestStatistics
from fedstats_app.report.statistics_file import Accumulated, load_accumulated, save_accumulated
from fedstats_app.server.rank_curve import RankCurve
from fedstats_app.settings.app_config import RunOptions
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, StatisticsSum
from fedstats_app.strategies import StatisticsStrategy

_COLLECTION, _CURVE = "collection", "curve"
# Rows of single clients, by which their influence is measured in the end, are written down up to so many bytes: above
# that, it is measured of those that answer after an interruption only. No head depends on it.
MAX_ROW_BYTES = 64 * 2**20
# Writing down takes at most one part in so many of the time.
SHARE_OF_TIME = 20


@dataclass(frozen=True)
class Asked:
    """What was noted while clients answered.

    Attributes
    ----------
    kept : KeptStatistics
        The rows of every client that answered; none where shares are capped.
    largest : LargestStatistics
        Those with the largest Gram matrices or factors; none where shares are capped.
    label_counts : dict
        From client to (C,) samples per class, where they may be shown.
    rounds : list
        An entry per round for results.json, where there are several.
    curve : RankCurve or None
        What FedRoot would have been sent at other ranks, where that follows from what was sent.
    """

    kept: KeptStatistics
    largest: LargestStatistics
    label_counts: dict[int, np.ndarray] = field(default_factory=dict)
    rounds: list[dict[str, object]] = field(default_factory=list)
    curve: RankCurve | None = None


class Accumulator:
    """Keeps what stage 1 has summed in the run folder, now and then, where statistics may be kept there.

    Parameters
    ----------
    folder : Path
        Of the run.
    strategy : StatisticsStrategy
        Which sums.
    asked : Asked
        What is noted beside.
    options : RunOptions
        Whether statistics may be kept, and how often.
    """

    def __init__(self, folder: Path, strategy: StatisticsStrategy, asked: Asked, options: RunOptions) -> None:
        self._folder, self._strategy, self._asked = folder, strategy, asked
        # Under caps on shares the sums are made when all have answered.
        self._wanted = options.save_statistics and strategy.collection.capped is None
        self._every = options.checkpoint_seconds
        self._last, self._took = time.monotonic(), 0.0

    def take_up(self, present: Iterable[int]) -> bool:
        """Go on from what an interrupted run has, if there is something, and return whether there is.

        Parameters
        ----------
        present : iterable of int
            The clients that are there now. One that was merged and is not may have come back with another id: it is
            then known by its statistics.

        Raises
        ------
        ValueError
            If the file is damaged.
        """
        kept = load_accumulated(self._folder)
        if kept is None:
            return False
        self._strategy.collection.take_up(_of(kept, _COLLECTION), kept.record[_COLLECTION], set(present))
        asked = self._asked
        asked.rounds[:] = kept.record["rounds"]
        clients = kept.record["labelled"]
        asked.label_counts.update(zip(clients, kept.tensors["label-counts"].numpy(), strict=True))
        if asked.curve is not None:
            asked.curve.take_up(_of(kept, _CURVE), kept.record[_CURVE])
        self._take_up_rows(kept)
        return True

    def keep(self) -> None:
        """Write down where stage 1 stands, unless that was done only a while ago."""
        started = time.monotonic()
        if not self._wanted or started - self._last < max(self._every, SHARE_OF_TIME * self._took):
            return
        asked = self._asked
        sums, record = self._strategy.collection.state()
        named = {f"{_COLLECTION}-{index}": total for index, total in enumerate(sums)}
        curve: list[int] = []
        if asked.curve is not None:
            of_curve, curve = asked.curve.state()
            named |= {f"{_CURVE}-{index}": total for index, total in enumerate(of_curve)}
        rows, owners = self._rows()
        labels = [torch.from_numpy(counts) for counts in asked.label_counts.values()]
        save_accumulated(
            self._folder,
            Accumulated(
                named,
                {"label-counts": torch.stack(labels) if labels else torch.zeros(0, 0, dtype=torch.int64), **rows},
                {
                    _COLLECTION: record,
                    _CURVE: curve,
                    "rounds": asked.rounds,
                    "labelled": list(asked.label_counts),
                    "owners": owners,
                },
            ),
        )
        self._last = time.monotonic()
        self._took = self._last - started

    def _rows(self) -> tuple[dict[str, Tensor], list[list[int]]]:
        """Return the rows of all clients together, and of each client in turn its id and how many are its."""
        parts: list[ClassMeanRows] = []
        owners: list[list[int]] = []
        num_bytes = 0
        for client, (one, *_) in self._asked.kept:
            parts.append(one.rows)
            owners.append([client, len(one.rows)])
            num_bytes += one.rows.class_sums.nbytes
            if num_bytes > MAX_ROW_BYTES:
                return {}, []
        if not parts:
            return {}, []
        rows = ClassMeanRows.concatenate(parts)
        return {"row-class-ids": rows.class_ids, "row-counts": rows.counts, "row-sums": rows.class_sums}, owners

    def _take_up_rows(self, kept: Accumulated) -> None:
        start, num_classes = 0, self._strategy.num_classes
        for client, number in kept.record["owners"]:
            part = slice(start, start + number)
            ids, counts, sums = (kept.tensors[name][part] for name in ("row-class-ids", "row-counts", "row-sums"))
            rows = ClassMeanRows(ids, counts, num_classes=num_classes, class_sums=sums)
            self._asked.kept.add(client, [ClientStatistics(rows)])
            start += number


def _of(kept: Accumulated, prefix: str) -> list[StatisticsSum]:
    names = [name for name in kept.sums if name.startswith(f"{prefix}-")]
    return [kept.sums[name] for name in sorted(names, key=lambda name: int(name.rpartition("-")[2]))]
