"""Personal heads in closed form: solved from the federation's statistics with more weight on the client's own.

The mixture of per-sample averages, (1 - a) global / N + a local / n, is solved as any statistics are. It is ridge
regression (or a Gaussian discriminant) on all samples with the client's own at a larger weight: a = 0 gives the global
head, a = n / N counts the client's samples about twice, and a = 1 gives the client's own head. Averages, so that the
meaning of a depends neither on how large the client is nor on how large the federation is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.data import Dataset
from fedstats_app.heads import LinearHead
from fedstats_app.methods import Method
from fedstats_app.statistics import FeatureStatistics

# Candidate weights. 0 is the global head, so the choice never scores below it on the samples that decide.
MIXING_GRID = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# Folds of the cross-validation. A single hold-out part of a few dozen samples would leave the choice mostly to luck.
FOLDS = 4
# Mixing weights are taken as fractions, so that mixed statistics have whole counts as all statistics do.
LARGEST_DENOMINATOR = 1000
MAX_COUNT = 2**62

# Solves mixed statistics as the federation's head was solved, its regulariser included, which may be in proportion to
# the number of samples: the second argument is that of the statistics over that of the federation.
MixtureSolver = Callable[[FeatureStatistics, float], LinearHead]


# Features and labels of samples.
Features = tuple[Tensor, Tensor]
# By method: the regulariser that stays as it was for the federation, and whether it is in proportion to the samples.
_REGULARISERS = {"fed3r": ("ridge_lambda", True), "fedcgs": ("shrinkage", False)}
# Keeps the draw of what is held out to choose a head apart from that of batches.
_VALIDATION_STREAM = 0x5E1F


def features_of(reader: FeatureReader, dataset: Dataset, part: NDArray[np.int64]) -> Features:
    """Return the features (n, d) and labels (n,) of a client's samples."""
    labels = torch.from_numpy(np.array(dataset.labels[part]))
    found = [(block.cpu(), positions) for block, positions in reader.blocks(dataset, part)]
    if not found:
        return torch.zeros(0, reader.backbone.feature_dim), labels
    return torch.cat([block for block, _ in found]), labels[torch.cat([positions for _, positions in found])]


def shared_statistics(clients: Sequence[Features], num_classes: int) -> FeatureStatistics:
    """Return the federation's statistics, with a Gram matrix."""
    total = FeatureStatistics.from_features(*clients[0], num_classes)
    for features, labels in clients[1:]:
        total += FeatureStatistics.from_features(features, labels, num_classes)
    return total


def global_heads(
    methods: Mapping[str, Method[Any]],
    shared: FeatureStatistics,
    clients: Mapping[int, tuple[Features, Features]],
    seed: int,
) -> dict[str, dict[int, int]]:
    """Return, by method and client, the test samples that the federation's head predicts right."""
    heads = {name: method.solve(shared) for name, method in methods.items()}
    return {
        name: {number: num_correct(head, test) for number, (_, test) in clients.items()} for name, head in heads.items()
    }


def personal_heads(
    methods: Mapping[str, Method[Any]],
    shared: FeatureStatistics,
    clients: Mapping[int, tuple[Features, Features]],
    seed: int,
) -> dict[str, dict[int, int]]:
    """Return, by method and client, the test samples that the client's own head predicts right."""
    found = {}
    for name, method in methods.items():
        if name not in _REGULARISERS:
            continue
        solve, found[name] = mixture_solver(method, shared), dict[int, int]()
        for number, ((features, labels), test) in clients.items():
            known, key = torch.ones(len(labels), dtype=torch.bool), (seed, number, _VALIDATION_STREAM)
            mixing = choose_mixing(shared, features, labels, solve, in_global=known, key=key)
            own = FeatureStatistics.from_features(features, labels, shared.num_classes)
            found[name][number] = num_correct(personal_head(shared, own, mixing, solve), test)
    return found


def num_correct(head: LinearHead, samples: Features) -> int:
    """Count the samples that a head predicts right."""
    features, labels = samples
    return int((head.predict(features) == labels).sum())


def mixture_solver(method: Method[Any], shared: FeatureStatistics) -> MixtureSolver:
    """Return what solves mixtures with the regulariser that the federation's head has."""
    name, per_sample = _REGULARISERS[method.name]
    value = method.solve(shared).report.parameters[name]

    def solve(statistics: FeatureStatistics, ratio: float) -> LinearHead:
        fixed = value * ratio if per_sample else value
        return replace(method, options=replace(method.options, **{name: fixed})).solve(statistics)

    return solve


def mixed_statistics(
    global_statistics: FeatureStatistics, local_statistics: FeatureStatistics, mixing: float
) -> FeatureStatistics:
    """Return statistics in proportion to (1 - a) global / N + a local / n.

    They are the sum u global + v local with the smallest whole numbers u : v = (1 - a) n : a N, so that counts stay
    whole and a = 0 and a = 1 give back either side to the bit.

    Parameters
    ----------
    global_statistics, local_statistics : FeatureStatistics
        Of N and n samples, with Gram matrices or both without.
    mixing : float
        a in [0, 1], to 1/1000. If one side has no samples, the result is the other side.

    Raises
    ------
    ValueError
        If a is out of range, the statistics do not fit each other, or counts would be too large for int64.
    """
    if not 0.0 <= mixing <= 1.0:
        raise ValueError(f"mixing must lie in [0, 1], got {mixing}")
    share = Fraction(mixing).limit_denominator(LARGEST_DENOMINATOR)
    total, own = global_statistics.num_examples, local_statistics.num_examples
    if not total or not own:
        return global_statistics + local_statistics
    weight = (share.denominator - share.numerator) * own, share.numerator * total
    divisor = math.gcd(*weight)
    times_global, times_local = (value // divisor for value in weight)
    if times_global * total + times_local * own > MAX_COUNT:
        raise ValueError(f"too many samples to mix: {total} and {own} at a weight of {mixing}")
    if not times_local:
        return global_statistics
    if not times_global:
        return local_statistics
    return _times(global_statistics, times_global) + _times(local_statistics, times_local)


def personal_head(
    global_statistics: FeatureStatistics, local_statistics: FeatureStatistics, mixing: float, solve: MixtureSolver
) -> LinearHead:
    """Return the head of the mixture; with a = 0 the global one, to the bit.

    Parameters
    ----------
    global_statistics, local_statistics, mixing
        As :func:`mixed_statistics`.
    solve : callable
        As the global head was solved.

    Returns
    -------
    LinearHead
        float64. Classes that neither side gives any weight are absent.
    """
    mixture = mixed_statistics(global_statistics, local_statistics, mixing)
    ratio = mixture.num_examples / max(global_statistics.num_examples, 1)
    return solve(mixture, ratio)


def choose_mixing(
    global_statistics: FeatureStatistics,
    features: Tensor,
    labels: Tensor,
    solve: MixtureSolver,
    *,
    in_global: Tensor,
    key: Sequence[int],
    grid: Sequence[float] = MIXING_GRID,
) -> float:
    """Choose the weight of a client's own statistics by cross-validation: samples that are in neither side decide.

    The federation's statistics are sums, so the held-out samples are subtracted exactly; otherwise only the global head
    would have seen them.

    Parameters
    ----------
    global_statistics : FeatureStatistics
        Of the federation, this client included.
    features : Tensor
        (n, d) the client's own features, mapped as the statistics are.
    labels : Tensor
        (n,) int64 in [0, C).
    solve : callable
        As the global head was solved.
    in_global : Tensor
        (n,) bool: samples that are in the global statistics; a client may have withheld classes with few samples.
    key : sequence of int
        Determines the folds.
    grid : sequence of float
        Weights to try, ascending from 0.

    Returns
    -------
    float
        The smallest of the best weights; 0 with fewer than ``FOLDS`` samples.

    Raises
    ------
    ValueError
        If the grid does not ascend from 0, or the global statistics do not hold the client's samples.
    """
    if not grid or grid[0] != 0.0 or any(low >= high for low, high in itertools.pairwise(grid)):
        raise ValueError(f"the grid of mixing weights must ascend from 0, got {tuple(grid)}")
    if len(labels) < FOLDS:
        return 0.0
    order = torch.from_numpy(np.random.default_rng([*key]).permutation(len(labels)))
    num_correct = [0] * len(grid)
    for fold in range(FOLDS):
        held_out = torch.arange(len(order)) % FOLDS == fold
        validation, rest = order[held_out], order[~held_out]
        in_both = validation[in_global[validation]]
        remaining = _difference(global_statistics, _statistics_of(features, labels, in_both, global_statistics))
        local = _statistics_of(features, labels, rest, global_statistics)
        for index, mixing in enumerate(grid):
            predicted = personal_head(remaining, local, mixing, solve).predict(features[validation])
            num_correct[index] += int((predicted == labels[validation]).sum())
    return grid[num_correct.index(max(num_correct))]


def _statistics_of(features: Tensor, labels: Tensor, chosen: Tensor, like: FeatureStatistics) -> FeatureStatistics:
    return FeatureStatistics.from_features(
        features[chosen], labels[chosen], like.num_classes, gram=like.gram is not None
    )


def _times(statistics: FeatureStatistics, factor: int) -> FeatureStatistics:
    gram = None if statistics.gram is None else statistics.gram * factor
    return FeatureStatistics(statistics.class_counts * factor, statistics.class_sums * factor, gram)


def _difference(statistics: FeatureStatistics, part: FeatureStatistics) -> FeatureStatistics:
    counts = statistics.class_counts - part.class_counts
    if int(counts.min()) < 0:
        class_id = int(counts.argmin())
        raise ValueError(
            f"the global statistics do not hold the client's samples: of class {class_id} they have "
            f"{int(statistics.class_counts[class_id])}, the client takes out {int(part.class_counts[class_id])}"
        )
    present = (counts > 0).unsqueeze(1)
    sums = torch.where(present, statistics.class_sums - part.class_sums, 0.0)  # not rounding where nothing is left
    gram = None if statistics.gram is None or part.gram is None else statistics.gram - part.gram
    return FeatureStatistics(counts, sums, gram)
