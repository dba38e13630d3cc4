"""Caps on any client's share of a class and of all samples: whoever has more counts as if it had fewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.statistics.class_mean_rows import ClassMeanRows
from fedstats_app.statistics.client_statistics import ClientStatistics
from fedstats_app.statistics.factors import ScatterFactor

# Of both caps in turn; two are nearly always enough.
MAX_CUTS = 20


@dataclass(frozen=True)
class ShareCaps:
    """The largest shares that a client may have.

    Attributes
    ----------
    of_class : float
        Of the samples of one class, in (0, 1]; 1 for no cap.
    of_all : float
        Of all samples, in (0, 1].
    """

    of_class: float = 1.0
    of_all: float = 1.0

    @property
    def bind(self) -> bool:
        """Whether there is any cap."""
        return self.of_class < 1.0 or self.of_all < 1.0


def share_weights(counts: Sequence[Tensor], others: Tensor, caps: ShareCaps) -> Tensor:
    """Return (K, C) by what each client's samples of each class are multiplied, in [0, 1], so that all keep the caps.

    Parameters
    ----------
    counts : sequence of Tensor
        K clients' (C,) int64 samples per class.
    others : Tensor
        (C,) int64 samples that are not cut: those of earlier runs.
    caps : ShareCaps
        The caps. Both are applied in turn, since each cut changes all shares, until nothing changes any more.
    """
    table = torch.stack([*counts, others])[:-1].to(torch.float64)
    rest, left = others.to(torch.float64), table
    for _ in range(MAX_CUTS):
        before = left
        columns = zip(left.T, rest.tolist(), strict=True)
        left = torch.minimum(left, torch.tensor([level(one[one > 0], more, caps.of_class) for one, more in columns]))
        totals = left.sum(dim=1)
        most = level(totals[totals > 0], float(rest.sum()), caps.of_all)
        left = left * (most / totals.clamp(min=1e-300)).clamp(max=1.0).unsqueeze(1)
        if torch.allclose(left, before, rtol=1e-6, atol=0.0):
            break
    return torch.where(left < table, left / table.clamp(min=1.0), torch.ones_like(table))


def level(counts: Tensor, others: float, cap: float) -> float:
    """Return the largest t with t <= cap (others + sum_k min(n_k, t)).

    Where there are too few clients for anybody to keep the cap, all count alike: t is the smallest count.

    Parameters
    ----------
    counts : Tensor
        (K,) float64, positive.
    others : float
        Samples that are not cut.
    cap : float
        In (0, 1].
    """
    if not len(counts):
        return 0.0
    falling = counts.sort(descending=True).values
    if cap >= 1.0:
        return float(falling[0])
    # With the largest j cut: t = cap (others + rest_j) / (1 - j cap), where rest_j are the samples of those not cut.
    rest = others + float(falling.sum())
    for number, count in enumerate(falling.tolist()):
        share = 1.0 - number * cap
        if share <= 0.0:
            break
        if count <= cap * rest / share:
            return cap * rest / share
        rest -= count
    share = 1.0 - len(falling) * cap
    return cap * others / share if share > 0.0 and others > 0.0 else float(falling[-1])


def capped(client: ClientStatistics, weights: Tensor) -> ClientStatistics:
    """Return a client's statistics with (C,) weights of its classes, at least one sample of each row.

    Counts are rounded and means kept. The scatter about them, of which nobody knows which class it is of, is weighed
    by the share of all its samples that is left: Gram matrix and class sums stay those of possible samples.
    """
    rows = client.rows
    if bool((weights[rows.class_ids] >= 1.0).all()):
        return client
    exact = rows.counts.to(torch.float64)
    counts = (weights[rows.class_ids] * exact).round().clamp(min=1.0)
    factors = (counts / exact).unsqueeze(1)
    made = ClassMeanRows(
        rows.class_ids,
        counts.to(torch.int64),
        num_classes=rows.num_classes,
        class_sums=(rows.class_sums.to(torch.float64) * factors),
    )
    share = float(counts.sum() / exact.sum())
    gram, before, after = client.gram, rows.scaled_sums, made.scaled_sums
    if gram is not None:
        gram = share * (gram - before.T @ before) + after.T @ after
    scatter = client.scatter
    if scatter is not None:
        scatter = ScatterFactor(scatter.values * share**0.5, scatter.directions, share * scatter.left_out)
    return ClientStatistics(made, gram, scatter)
