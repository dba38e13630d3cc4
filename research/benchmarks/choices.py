"""Rules that choose the ridge from the statistics alone, the square root of features, and classes that weigh alike.

    python -m research.benchmarks.choices "dataset=parquet:/data/flowers17 backbone=squeezenet1_1" --clients 10

An experiment is one of :func:`research.benchmarks.features.settings_of`. Each is measured whole, with 10, 20 and 50
samples per class, with classes that shrink exponentially to a fiftieth ("tail"), with a fifth of the labels wrong
("noise") and with four copies of 20 samples per class ("copies"); for images also on the square root of the features,
scaled to length one. One line of JSON is printed per configuration and method: the best accuracy on a grid of ridges,
the accuracy at the ridge that each rule chooses, and the best one if classes weigh alike. The first table has, per
method and rule, the mean and the largest loss to the best of the grid; the second what the square root gains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstats_app.data.partition import _dirichlet as dirichlet
from fedstats_app.heads.fedroot import solve_completed
from fedstats_app.heads.regularisation import (
    MOST_FREEDOM,
    HeadMap,
    Spread,
    choose_ridge,
    with_between_class,
    without_between_class,
)
from fedstats_app.heads.scatter import ClassTotals, class_mean_products, row_scatter, within_class_freedom
from fedstats_app.methods import FedRootMethod
from fedstats_app.statistics import FeatureStatistics
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, run
from research.benchmarks.regularisers import _sent as sent
from research.benchmarks.regularisers import curves, discriminant

# Ridges in mean eigenvalues of the scatter; rules choose among the inner ones.
GRID = (1e-9, *(10.0 ** (step / 3) for step in range(-12, 13)), 1e10)
VARIANTS = ("full", "10", "20", "50", "tail", "noise", "copies")
TAIL, WRONG, COPIES, DRAWS = 50.0, 0.2, 4, 256
# Parts of a sample's mean squared distance from its class mean, below which no ridge is chosen.
FLOORS = (0.0, 0.1, 0.5, 1.0)


@dataclass(frozen=True)
class Trial:
    """One configuration of one method; accuracies in per cent, means over seeds.

    Attributes
    ----------
    experiment, variant, power, method : str
        Data and network; which samples; "raw" or "sqrt"; the method and its head.
    best, balanced : float
        The best of the grid, and the best if classes weigh alike (NaN for FedCOF).
    chosen : dict
        From rule to accuracy; of FedRoot also that of its default head, which is two in one.
    """

    experiment: str
    variant: str
    power: str
    method: str
    best: float
    balanced: float
    chosen: dict[str, float]


def varied(labels: Tensor, num_classes: int, variant: str, seed: int) -> tuple[Tensor, Tensor]:
    """Return indices of the samples of a variant, and their labels."""
    draw, truth = np.random.default_rng(seed + 1000), labels.numpy()
    kept, given = draw.permutation(len(truth)), truth.copy()
    if variant == "tail":
        most = np.bincount(truth).max()
        sizes = np.maximum(2, np.round(most * TAIL ** (-draw.permutation(num_classes) / (num_classes - 1)))).astype(int)
    else:
        per_class = 20 if variant == "copies" else int(variant) if variant.isdecimal() else len(truth)
        sizes = np.full(num_classes, per_class)
    kept = np.sort(np.concatenate([kept[truth[kept] == label][: sizes[label]] for label in range(num_classes)]))
    if variant == "noise":
        wrong = kept[draw.random(len(kept)) < WRONG]
        given[wrong] = (given[wrong] + draw.integers(1, num_classes, len(wrong))) % num_classes
    kept = np.repeat(kept, COPIES if variant == "copies" else 1)
    return torch.from_numpy(kept), torch.from_numpy(given[kept])


def powered(features: Tensor, power: str) -> Tensor:
    """Return features (n, d) as float64, and for "sqrt" the root of those above zero, scaled to length one."""
    features = features.double()
    return features if power == "raw" else torch.nn.functional.normalize(features.clamp(min=0).sqrt())


def least_squares(spread: Spread, ridge: float, num_samples: int) -> tuple[float, float]:
    """Return minus the logarithm of generalised cross-validation, and the evidence, of ridge regression on labels.

    With H = (S + lambda I)^-1, P = M^T H M and D the counts, G + lambda I = H^-1 + M D M^T, so its determinant, its
    trace and the residual follow from the scatter's eigenvalues and matrices of classes.
    """
    counts, inverse = spread.counts, 1.0 / (spread.eigenvalues + ridge)
    shrunk = spread.means * inverse.unsqueeze(1)
    products, squares = spread.means.T @ shrunk, shrunk.T @ shrunk
    transform = torch.linalg.inv(torch.diag(1.0 / counts) + products)
    explained = float((transform * products).sum(dim=0) @ counts)  # tr(W^T B), as P is symmetric
    residual = num_samples - explained - ridge * float((transform * (squares @ transform)).sum())
    used = len(inverse) - ridge * (float(inverse.sum()) - float((transform * squares).sum()))
    gcv = 2.0 * math.log(max(1.0 - used / num_samples, 1e-9)) - math.log(max(residual, 1e-12))
    inner = torch.eye(len(counts), dtype=counts.dtype) + products * counts
    determinant = float(torch.log1p(spread.eigenvalues / ridge).sum() + torch.linalg.slogdet(inner).logabsdet)
    return gcv, -num_samples * math.log(max(num_samples - explained, 1e-12)) - determinant


def simulated(spread: Spread, ridge: float, head: HeadMap) -> float:
    """Return the accuracy by the argmax of normal scores, classes weighing by their counts."""
    inverse = 1.0 / (spread.eigenvalues + ridge)
    correction = 1.0 / max(1.0 - spread.directions(ridge) / spread.freedom, 1e-9)
    shrunk, covariance = spread.means * inverse.unsqueeze(1), spread.eigenvalues / spread.weight
    products = spread.means.T @ shrunk
    transform, bias = head(products, shrunk.T @ shrunk, spread.counts)
    optimism = float((covariance * inverse).sum()) * correction / spread.counts
    scores = (products - torch.diag(optimism)) @ transform + bias
    noise = transform.T @ ((shrunk * covariance.unsqueeze(1)).T @ shrunk) @ transform * correction**2
    values, vectors = torch.linalg.eigh(noise)
    draws = torch.randn(DRAWS, len(values), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = (draws * values.clamp(min=0).sqrt()) @ vectors.T
    right = [float(((own + drawn).argmax(dim=1) == label).double().mean()) for label, own in enumerate(scores)]
    return float(torch.tensor(right, dtype=torch.float64) @ spread.counts / spread.counts.sum())


def choices(spread: Spread, head: HeadMap, num_samples: int, *, of_samples: bool) -> dict[str, float]:
    """Return, by rule, the ridge in mean eigenvalues."""
    unit = float(spread.eigenvalues.mean())
    inner = [factor * unit for factor in GRID[1:-1]]
    inner = [ridge for ridge in inner if spread.directions(ridge) <= MOST_FREEDOM * spread.freedom] or inner[-1:]
    rules: dict[str, Callable[[float], float]] = {
        "expected accuracy": lambda ridge: spread.expected_accuracy(ridge, head),
        "Monte Carlo": lambda ridge: simulated(spread, ridge, head),
    }
    if of_samples:
        rules["cross-validation"] = lambda ridge: least_squares(spread, ridge, num_samples)[0]
        rules["evidence"] = lambda ridge: least_squares(spread, ridge, num_samples)[1]
    best = {name: max(inner, key=rule) for name, rule in rules.items()}
    floors = FLOORS if of_samples else FLOORS[:1]
    found = {f"{name}, {f:g}": max(ridge, f * spread.residual) / unit for name, ridge in best.items() for f in floors}
    least = spread.residual if of_samples else 0.0
    return {"before": max(choose_ridge(spread, head), least) / unit, **found}


def trials(data: Features, variant: str, power: str, clients: int, seeds: int) -> Iterator[Trial]:
    """Yield all methods of one configuration."""
    features, test = powered(data.train, power), powered(data.test, power)
    both: list[float] = []
    found: dict[str, list[tuple[list[float], list[float], dict[str, float]]]] = {}
    for seed in range(seeds):
        index, labels = varied(data.train_labels, data.num_classes, variant, seed)
        sums = FeatureStatistics.from_features(features[index], labels, data.num_classes)
        parts = dirichlet(labels.numpy(), clients, 0.1, seed, shuffled=True)
        held = sent(features[index], labels, parts, data.num_classes, FedRootMethod.default())
        totals, within = ClassTotals.of(held.rows()), discriminant("within", within_class_freedom(sums))
        weights = (totals.counts - 1).clamp(min=0) / (totals.num_means - 1).clamp(min=1)
        scatter, weight = row_scatter(held.rows(), totals, weights), (totals.counts - 1)[totals.num_means > 1].sum()
        freedom = int((totals.num_means - 1).clamp(min=0).sum())
        heads = {"Fed3R": with_between_class, "FedCGS": within}
        completed = FedRootMethod.default().inputs(held)
        assert isinstance(completed, FeatureStatistics)
        right = solve_completed(completed).predict(test) == data.test_labels
        both.append(100.0 * float(right.double().mean()))
        cases = [(completed, {"FedRoot": with_between_class, "FedRoot within": within})]
        if variant != "full" or not seed:
            cases.append((sums, heads))
        for statistics, own in cases:
            assert statistics.gram is not None
            draws, counts = within_class_freedom(statistics), statistics.class_counts.double()
            alike = {f"{name} alike": _alike(head) for name, head in own.items()}
            inside = statistics.gram - class_mean_products(statistics)
            spread = Spread.of(inside, statistics.class_means, counts, float(draws), draws)
            curve = curves(inside, statistics, {**own, **alike}, test, data, GRID)
            for name, head in own.items():
                chosen = choices(spread, head, len(index), of_samples=True) if spread else {}
                found.setdefault(name, []).append((curve[name], curve[f"{name} alike"], chosen))
        rows = Spread.of(scatter, totals.means, totals.counts, float(weight), freedom)
        if rows is not None:
            curve = curves(scatter, sums, {"FedCOF": without_between_class}, test, data, GRID)
            chosen = choices(rows, without_between_class, len(index), of_samples=False)
            found.setdefault("FedCOF", []).append((curve["FedCOF"], [math.nan], chosen))
    for name, seen in found.items():
        rules = {rule: float(np.mean([_at(curve, own[rule]) for curve, _, own in seen])) for rule in seen[0][2]}
        if name == "FedRoot":
            rules["both heads, as built"] = float(np.mean(both))
        best = float(np.mean([curve for curve, _, _ in seen], axis=0).max())
        balanced = float(np.mean([curve for _, curve, _ in seen], axis=0).max())
        yield Trial("", variant, power, name, best, balanced, rules)


def _alike(head: HeadMap) -> HeadMap:
    return lambda products, squares, counts: head(products, squares, counts.mean().expand(len(counts)))


def _at(curve: Sequence[float], factor: float) -> float:
    return float(np.interp(math.log10(factor), np.log10(GRID), curve))


def measure(experiment: str, clients: int, seeds: int, variants: Sequence[str]) -> Iterator[Trial]:
    """Yield all variants of one experiment that its number of samples allows."""
    config = config_of(experiment)
    data = features_of(config)
    powers = ("raw", "sqrt") if float(data.train.min()) >= 0.0 else ("raw",)
    for variant in variants:
        if variant.isdecimal() and int(variant) >= len(data.train_labels) / data.num_classes:
            continue
        for power in powers:
            for trial in trials(data, variant, power, clients, seeds):
                yield Trial(experiment, *list(vars(trial).values())[1:])


def table(lines: Sequence[Trial]) -> str:
    """Return both tables as Markdown."""
    written = ["| method | rule, floor | mean loss | worst loss | where |", "| --- | --- | ---: | ---: | --- |"]
    for name in dict.fromkeys(line.method for line in lines):
        own = [line for line in lines if line.method == name and line.power == "raw" and line.chosen]
        for rule in own[0].chosen if own else ():
            lost = [line.best - line.chosen[rule] for line in own]
            where = own[int(np.argmax(lost))]
            worst = f"{max(lost):.2f} | {where.experiment} {where.variant}"
            written.append(f"| {name} | {rule} | {np.mean(lost):.2f} | {worst} |")
    written += [
        "",
        "| experiment | variant | method | best | root gains | alike gains |",
        "|---|---|---|---:|---:|---:|",
    ]
    roots = {(line.experiment, line.variant, line.method): line.best for line in lines if line.power == "sqrt"}
    for line in lines:
        if line.power == "raw":
            gain = roots.get((line.experiment, line.variant, line.method), math.nan) - line.best
            tail = f"{line.best:.1f} | {gain:+.1f} | {line.balanced - line.best:+.1f} |"
            written.append(f"| {line.experiment} | {line.variant} | {line.method} | {tail}")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(100,), seeds=3)
    parser.add_argument("--variants", nargs="+", default=[*VARIANTS], choices=VARIANTS)
    options = parser.parse_args(arguments)
    own = (options.clients[0], options.seeds, options.variants)
    run(options, Trial, lambda experiment: measure(experiment, *own), table)


if __name__ == "__main__":
    main()
