"""Accuracy against rounds, bytes and forward passes: one training's curve, or the mean over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedstats_app.report.training_record import TrainingResult


@dataclass(frozen=True)
class TrainingCurve:
    """Mean over seeds of the trainings of one name, after each round that was evaluated in all of them.

    Attributes
    ----------
    name, stage, start : str
        As in every one of the trainings.
    title : str
        The stage in a heading.
    num_seeds : int
        How many trainings it is of.
    rounds : tuple of int
        Absolute, ascending.
    accuracy : tuple of float
        Means, 0 to 1.
    deviation : tuple of float
        Standard deviations (with n - 1), 0 for one seed.
    megabytes : tuple of float
        Means of the bytes up and down until then, the start's included, in 10^6.
    forward_passes : tuple of float
        Means of the passes until then, the start's included.
    """

    name: str
    stage: str
    start: str
    title: str
    num_seeds: int
    rounds: tuple[int, ...]
    accuracy: tuple[float, ...]
    deviation: tuple[float, ...]
    megabytes: tuple[float, ...]
    forward_passes: tuple[float, ...]


def training_curves(results: Iterable[TrainingResult]) -> list[TrainingCurve]:
    """Take the trainings of one name for the seeds of one experiment, and average them.

    Parameters
    ----------
    results : iterable of TrainingResult
        In any order.

    Returns
    -------
    list of TrainingCurve
        In the order in which the names come first. A training that ended early shortens its curve.

    Raises
    ------
    ValueError
        If trainings of one name differ in stage or start.
    """
    by_name: dict[str, list[TrainingResult]] = {}
    for result in results:
        by_name.setdefault(result.name, []).append(result)
    return [_mean(name, seeds) for name, seeds in by_name.items()]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation with n - 1, which is 0 for one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _mean(name: str, seeds: Sequence[TrainingResult]) -> TrainingCurve:
    kinds = {(seed.stage, seed.start) for seed in seeds}
    if len(kinds) > 1:
        raise ValueError(f"trainings named {name!r} must be of one stage and start, got {sorted(kinds)}")
    points = [_points(seed) for seed in seeds]
    rounds = sorted(set.intersection(*(set(one) for one in points)))
    scores = [mean_and_deviation([one[number][0] for one in points]) for number in rounds]
    return TrainingCurve(
        name=name,
        stage=seeds[0].stage,
        start=seeds[0].start,
        title=seeds[0].display_name or seeds[0].stage,
        num_seeds=len(seeds),
        rounds=tuple(rounds),
        accuracy=tuple(mean for mean, _ in scores),
        deviation=tuple(deviation for _, deviation in scores),
        megabytes=tuple(statistics.fmean(one[number][1] / 1e6 for one in points) for number in rounds),
        forward_passes=tuple(statistics.fmean(one[number][2] for one in points) for number in rounds),
    )


def _points(result: TrainingResult) -> dict[int, tuple[float, int, int]]:
    """From every evaluated round to accuracy, bytes and forward passes."""
    costs = zip(result.rounds, result.cumulative_bytes(), result.cumulative_forward_passes(), strict=True)
    return {one.round: (one.accuracy, sent, passes) for one, sent, passes in costs if one.accuracy is not None}
