"""What is noted while clients answer."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedstats_app.grid.kept_statistics import KeptStatistics
from fedstats_app.grid.largest_statistics import LargestStatistics
from fedstats_app.grid.rank_curve import RankCurve


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
