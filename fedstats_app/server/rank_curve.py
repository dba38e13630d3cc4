"""What FedRoot would have scored at other ranks, where the same pass brings Gram matrices to make its factors of."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

from fedstats_app.grid.curve import CurvePoint
from fedstats_app.grid.rank_curve import CURVE, RankCurve
from fedstats_app.heads import HeadScores, LinearHead
from fedstats_app.heads.fedroot import complete
from fedstats_app.methods import FEDROOT, first_of
from fedstats_app.server.run import Run
from fedstats_app.statistics import ScatterSpec
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.threads import beside_each_other

# A rank takes a d x d matrix and a solve: with more features than this, too much for a picture.
MAX_FEATURE_DIM = 2048


def rank_curve(run: Run, strategy: StatisticsStrategy) -> RankCurve | None:
    """Return what every client is to be added to for the ranks beside the run's own; None where there is no curve.

    There is one where clients send Gram matrices of FedRoot's features, the server has test data, the features are not
    too many, nobody's share is capped, and no clients of an earlier run are missing.

    Parameters
    ----------
    run : Run
        Prepared.
    strategy : StatisticsStrategy
        Not started.
    """
    name = first_of(FEDROOT, strategy.methods())
    if not name or run.test_set is None or run.config.federation.extend or strategy.collection.capped is not None:
        return None
    index, own = strategy.spec_index(name), strategy.methods()[name].specification.scatter
    if own is None or not strategy.request.specs[index].gram or run.backbone.feature_dim > MAX_FEATURE_DIM:
        return None
    return RankCurve(index, [replace(spec, dtype=own.dtype) for spec in CURVE if spec.rank != own.rank])


def curve_points(
    run: Run, strategy: StatisticsStrategy, name: str, curve: RankCurve, scores: HeadScores
) -> list[CurvePoint]:
    """Solve and score FedRoot at every rank of the curve.

    Parameters
    ----------
    run : Run
        With a test set.
    strategy : StatisticsStrategy
        Finished.
    name : str
        Of FedRoot's head: a variant's, where no other is solved.
    curve : RankCurve
        With every client.
    scores : HeadScores
        Of FedRoot's head at the run's own rank, whose point is among them.

    Returns
    -------
    list of CurvePoint
        By growing bytes; none where nothing could be scored.
    """
    method = strategy.methods()[name]
    own = method.specification
    if run.test_set is None or own.scatter is None or not scores.confusion.num_examples:
        return []
    with run.progress.doing("FedRoot at {now} of {total} other ranks", len(curve.specs)) as step:
        done = itertools.count(1)

        def solved(spec: ScatterSpec) -> LinearHead:
            held = curve.low_rank(spec)
            head = method.method.solve(complete(held.rows, held.scatter, held.left_out), method.options)
            step.at(next(done))
            return head

        solves = beside_each_other([functools.partial(solved, spec) for spec in curve.specs])
    heads = {str(spec.rank): (own.feature_map, head) for spec, head in zip(curve.specs, solves, strict=True)}
    found = run.test_set.evaluate(heads, mask_absent=run.config.run.mask_absent)
    points = [CurvePoint(str(one.rank), curve.wire_bytes(one), found[str(one.rank)].accuracy) for one in curve.specs]
    wire_bytes = strategy.wire_bytes(name)
    points.append(CurvePoint(str(own.scatter.rank), wire_bytes, scores.confusion.accuracy))
    return sorted(points, key=lambda point: point.wire_bytes)
