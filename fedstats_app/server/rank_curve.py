"""FedRoot at other ranks than the run's, from the same pass if it brings Gram matrices: accuracy against bytes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from fedstats_app.grid.progress import Progress
from fedstats_app.heads import HeadScores, LinearHead
from fedstats_app.heads.fedroot import complete
from fedstats_app.methods import FEDROOT, first_of
from fedstats_app.rank_rule import RankRule
from fedstats_app.report.method_result import CurvePoint
from fedstats_app.server.evaluation_data import ServerTestSet
from fedstats_app.statistics import LowRankStatistics, ScatterSpec, StatisticsSum
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.threads import beside_each_other, one_thread
from fedstats_app.wire import ReceivedStatistics
from fedstats_app.wire.statistics_records import scatter_bytes_of, with_scatter

# From rows alone to all directions, by multiples of the square root of a client's number of samples.
FACTORS = (0.0, 0.5, 1.0, 2.0, 4.0)
CURVE = (*(ScatterSpec(RankRule("root", factor)) for factor in FACTORS), ScatterSpec(RankRule("full")))
# A rank takes a d x d matrix and a solve: with more features than this, too much for a picture.
MAX_FEATURE_DIM = 2048


class RankCurve:
    """Sums of the factors of several ranks, made of the Gram matrices that clients sent: accuracy against bytes.

    Feed it with each client as it is folded (:attr:`StatisticsStrategy.on_reply`), in that order. Memory: a d x d
    matrix for each rank, and the rows once.

    Parameters
    ----------
    index : int
        Which of the request's specifications has the Gram matrices.
    specs : sequence of ScatterSpec
        The ranks, different.
    """

    def __init__(self, index: int = 0, specs: Sequence[ScatterSpec] = CURVE) -> None:
        self.specs, self._index = tuple(specs), index
        self._sums: dict[ScatterSpec, StatisticsSum] = {}
        self._bytes = dict.fromkeys(self.specs, 0)

    def add(self, received: ReceivedStatistics) -> None:
        """Add one client's statistics.

        Raises
        ------
        ValueError
            If it sent no Gram matrix, or its rows alone exceed the bytes of a rule.
        """
        client = received.statistics[self._index]
        if not client.has_gram:
            raise ValueError("a curve of ranks needs statistics with a Gram matrix, got none")
        bytes_without = received.sizes[self._index].rows + received.other_bytes
        with one_thread():  # the other cores are the clients'
            made = {spec: with_scatter(client, spec, bytes_without) for spec in self.specs}
            shape = (client.rows.num_classes, client.rows.feature_dim)
            for number, (spec, one) in enumerate(made.items()):
                if spec not in self._sums:
                    self._sums[spec] = StatisticsSum(*shape, gram=False, keep_rows=number == 0, scatter=True)
                self._sums[spec].add(one)
                self._bytes[spec] += bytes_without + scatter_bytes_of(spec, one)

    def state(self) -> tuple[list[StatisticsSum], list[int]]:
        """Give the sums and bytes of the ranks, in their order, for :meth:`take_up`; none before the first client."""
        return [self._sums[spec] for spec in self.specs if self._sums], [self._bytes[spec] for spec in self.specs]

    def take_up(self, sums: Sequence[StatisticsSum], num_bytes: Sequence[int]) -> None:
        """Go on from what :meth:`state` of a curve of the same ranks returned."""
        if sums:
            self._sums = dict(zip(self.specs, sums, strict=True))
        self._bytes = dict(zip(self.specs, num_bytes, strict=True))

    def low_rank(self, spec: ScatterSpec) -> LowRankStatistics:
        """Return what the server would hold of one of the ranks, to be completed and solved.

        Raises
        ------
        KeyError
            If the rank is not one of the curve's, or there is no client yet.
        """
        return self._sums[spec].low_rank(self._sums[self.specs[0]].rows())

    def wire_bytes(self, spec: ScatterSpec) -> int:
        """Return the bytes that all clients would have sent for one of the ranks."""
        return self._bytes[spec]


def rank_curve(strategy: StatisticsStrategy, feature_dim: int) -> RankCurve | None:
    """Return what every client is to be added to for the ranks beside the run's own; None where there is no curve.

    There is one where clients send Gram matrices of FedRoot's features, these are not too many, and no share is capped.

    Parameters
    ----------
    strategy : StatisticsStrategy
        Not started.
    feature_dim : int
        d of the backbone.
    """
    name = first_of(FEDROOT, strategy.methods())
    if not name or strategy.collection.capped is not None or feature_dim > MAX_FEATURE_DIM:
        return None
    index, own = strategy.spec_index(name), strategy.methods()[name].specification.scatter
    if own is None or not strategy.request.specs[index].gram:
        return None
    return RankCurve(index, [replace(spec, dtype=own.dtype) for spec in CURVE if spec.rank != own.rank])


def curve_points(
    strategy: StatisticsStrategy,
    name: str,
    curve: RankCurve,
    test_set: ServerTestSet,
    scores: HeadScores,
    *,
    mask_absent: bool,
    progress: Progress,
) -> list[CurvePoint]:
    """Solve and score FedRoot at every rank of the curve.

    Parameters
    ----------
    strategy : StatisticsStrategy
        Finished.
    name : str
        Of FedRoot's head: a variant's, where no other is solved.
    curve : RankCurve
        With every client.
    test_set : ServerTestSet
        The server's.
    scores : HeadScores
        Of FedRoot's head at the run's own rank, whose point is among them.

    Returns
    -------
    list of CurvePoint
        By growing bytes; none where nothing could be scored.
    """
    method = strategy.methods()[name]
    own = method.specification
    if own.scatter is None or not scores.confusion.num_examples:
        return []

    def solved(spec: ScatterSpec) -> LinearHead:
        held = curve.low_rank(spec)
        return method.method.solve(complete(held.rows, held.scatter, held.left_out), method.options)

    with progress.doing(f"FedRoot at {len(curve.specs)} other ranks"):
        solves = beside_each_other([functools.partial(solved, spec) for spec in curve.specs])
    heads = {str(spec.rank): (own.feature_map, head) for spec, head in zip(curve.specs, solves, strict=True)}
    found = test_set.evaluate(heads, mask_absent=mask_absent)
    points = [CurvePoint(str(one.rank), curve.wire_bytes(one), found[str(one.rank)].accuracy) for one in curve.specs]
    wire_bytes = strategy.wire_bytes(name)
    points.append(CurvePoint(str(own.scatter.rank), wire_bytes, scores.confusion.accuracy))
    return sorted(points, key=lambda point: point.wire_bytes)
