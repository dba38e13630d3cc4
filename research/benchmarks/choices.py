"""Every method's automatic regulariser against the best fixed one, in easy and hard cases, and rounding on the wire.

    python -m research.benchmarks.choices "dataset=parquet:/data/flowers17 backbone=squeezenet1_1" --clients 10

An experiment is one of :func:`research.benchmarks.features.settings_of`. Its cases: all training samples; 5, 10, 20 and
50 per class; classes that shrink exponentially to a fiftieth ("tail"); a fifth of the labels wrong ("noise"); four
copies of 20 samples per class ("copies"); two clients ("two"), and one class per client ("one"). One line of JSON is
printed per case and method: accuracies of the automatic choice in each type on the wire, of the best of a grid, and of
FedNCM. With few samples and tails all classes weigh alike in an accuracy. The table has losses to the best of the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedstats_app.data.partition import _dirichlet as dirichlet
from fedstats_app.heads import LinearHead, solve_fedcof, solve_gaussian, solve_ncm, solve_ridge
from fedstats_app.heads.fedroot import solve_completed
from fedstats_app.heads.scatter import ClassTotals, row_scatter, within_class_freedom
from fedstats_app.methods import FedRootMethod
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.statistics.collected import StatisticsSum
from fedstats_app.testing import instruction
from fedstats_app.wire import StatisticsRequest, read_statistics_reply, statistics_reply
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, run

VARIANTS = ("full", "10", "20", "50", "tail", "noise", "copies")
CASES = ("full", "5", "10", "20", "50", "tail", "noise", "copies", "two", "one")
# With these, classes weigh alike: the test set has other shares.
BALANCED = {"5", "10", "20", "50", "tail", "copies"}
TAIL, WRONG, COPIES = 50.0, 0.2, 4
# Ridges in mean squared distances of a sample (for FedCOF: of a mean, scaled) from its class mean.
GRID = [10.0 ** (step / 3) for step in range(-9, 13)]
WIRES = ("float32", "float16", "int8")


@dataclass(frozen=True)
class Trial:
    """One case of one method.

    Attributes
    ----------
    experiment, case, method : str
        Data and network; which samples and clients; the method.
    best, fedncm : float
        Accuracy in per cent of the best of the grid and the automatic choice, and of FedNCM.
    chosen : dict
        From the type on the wire to the accuracy of the automatic choice.
    """

    experiment: str
    case: str
    method: str
    best: float
    fedncm: float
    chosen: dict[str, float] = field(default_factory=dict)


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


def split(labels: Tensor, num_classes: int, case: str, clients: int, seed: int) -> list[np.ndarray]:
    """Return the samples of each client."""
    if case != "one":
        return dirichlet(labels.numpy(), 2 if case == "two" else clients, 0.1, seed, shuffled=True)
    draw, parts, each = np.random.default_rng(seed), [], max(2, clients // num_classes)
    for label in range(num_classes):
        own = draw.permutation(np.flatnonzero(labels.numpy() == label))
        ends = [0, *(np.cumsum(draw.dirichlet([2.0] * each)) * len(own)).round().astype(int)]
        parts += [own[start:end] for start, end in pairwise(ends)]
    return parts


def received(
    features: Tensor, labels: Tensor, num_classes: int, parts: Sequence[np.ndarray], wire: str
) -> StatisticsSum:
    """Return the sum of what clients sent for all methods."""
    spec = StatisticsSpec(gram=True, scatter=FedRootMethod.default().specification.scatter)
    request = StatisticsRequest(num_classes, spec, wire_dtype=wire)
    total = StatisticsSum(num_classes, features.shape[1], gram=True, keep_rows=True, scatter=True)
    for index in (torch.from_numpy(part) for part in parts if len(part)):
        reply = statistics_reply(instruction(request.to_content()), request.statistics(features[index], labels[index]))
        total.add(read_statistics_reply(reply, request).statistics)
    return total


def solvers(total: StatisticsSum) -> dict[str, Callable[[float | None], LinearHead]]:
    """Return how each method is solved at a ridge of the grid, or None for the automatic one."""
    sums, rows, completed = total.summed(), total.rows(), FedRootMethod.default().inputs(total)
    assert sums.gram is not None
    energy, freedom = float(sums.gram.trace()), max(within_class_freedom(sums), 1)
    within = energy - float((sums.class_sums * sums.class_means).sum())
    residual, totals = within / freedom, ClassTotals.of(rows)
    spread = float(row_scatter(rows, totals, totals.fedcof_weights).trace()) / freedom or residual

    def at(factor: float | None, unit: float) -> float | str:
        return "auto" if factor is None else factor * unit

    return {
        "Fed3R": lambda factor: solve_ridge(sums, ridge_lambda=at(factor, residual)),  # type: ignore[arg-type]
        "FedCGS": lambda factor: solve_gaussian(
            sums,
            covariance="within",
            shrinkage=at(factor, sums.feature_dim / freedom),  # type: ignore[arg-type]
        ),
        "FedCOF": lambda factor: solve_fedcof(rows, shrinkage=at(factor, spread / freedom)),  # type: ignore[arg-type]
        "FedRoot": lambda factor: solve_completed(completed, ridge_lambda=at(factor, residual)),  # type: ignore[arg-type]
    }


def accuracy(head: LinearHead, data: Features, case: str) -> float:
    """Return the accuracy in per cent, in some cases with classes that weigh alike."""
    right = (head.predict(data.test.double()) == data.test_labels).double()
    counts = torch.bincount(data.test_labels, minlength=data.num_classes).double()
    weights = (1.0 / counts)[data.test_labels] if case in BALANCED else torch.ones_like(right)
    return round(100.0 * float(right @ weights / weights.sum()), 2)


def measure(experiment: str, clients: int, seeds: int, cases: Sequence[str], most: int) -> Iterator[Trial]:
    """Yield all cases of one experiment that its number of samples allows; accuracies are means over seeds."""
    data = features_of(config_of(experiment))
    drawn = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(0))[:most]
    train, truth = data.train[drawn].double(), data.train_labels[drawn]
    for case in cases:
        if case.isdecimal() and int(case) >= len(truth) / data.num_classes:
            continue
        found: dict[str, list[tuple[float, float, list[float]]]] = {}
        for seed in range(seeds):
            index, labels = varied(truth, data.num_classes, case if case not in ("two", "one") else "full", seed)
            parts = split(labels, data.num_classes, case, clients, seed)
            totals = [received(train[index], labels, data.num_classes, parts, wire) for wire in WIRES]
            fedncm = accuracy(solve_ncm(totals[0].summed()), data, case)
            automatic = [solvers(total) for total in totals]
            for name, solve in automatic[0].items():
                chosen = [accuracy(own[name](None), data, case) for own in automatic]
                best = max([chosen[0], *(accuracy(solve(factor), data, case) for factor in GRID)])
                found.setdefault(name, []).append((best, fedncm, chosen))
        for name, of_seeds in found.items():
            best, fedncm, chosen = (np.mean(column, axis=0) for column in zip(*of_seeds, strict=True))
            rounded = [round(float(value), 2) for value in chosen]
            yield Trial(experiment, case, name, float(best), float(fedncm), dict(zip(WIRES, rounded, strict=True)))


def table(lines: Sequence[Trial]) -> str:
    """Return by method and case the losses to the best of the grid, and what the wire costs, as Markdown."""
    written = [
        "| method | cases | n | loss: mean, worst (where) | below FedNCM | float16 | int8: mean, worst (where) |"
    ]
    written.append("|---|---|---|---|---|---|---|")
    groups = {"few, tails": {"5", "10", "20", "50", "tail"}, "others": set(CASES) - {"5", "10", "20", "50", "tail"}}
    for name in dict.fromkeys(line.method for line in lines):
        for group, cases in groups.items():
            own = [line for line in lines if line.method == name and line.case in cases]
            if not own:
                continue
            single = [line.chosen["float32"] for line in own]
            losses = {
                "best": [line.best - value for line, value in zip(own, single, strict=True)],
                "fedncm": [line.fedncm - value for line, value in zip(own, single, strict=True)],
                **{
                    wire: [value - line.chosen[wire] for line, value in zip(own, single, strict=True)] for wire in WIRES
                },
            }
            cells = []
            for lost in losses.values():
                where = own[int(np.argmax(lost))]
                short = where.experiment.split()[0].rsplit("/", 1)[-1]
                cells.append(f"{np.mean(lost):.2f}, {max(lost):.1f} ({short} {where.case})")
            best, fedncm, _, half, few_bits = cells
            below = f"{sum(lost > 1.0 for lost in losses['fedncm'])}, {fedncm.split(', ', 1)[1]}"
            written.append(f"| {name} | {group} | {len(own)} | {best} | {below} | {half} | {few_bits} |")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(10,), seeds=1)
    parser.add_argument("--cases", nargs="+", default=[*CASES], choices=CASES)
    parser.add_argument("--most", type=int, default=5000, help="training samples that are drawn")
    options = parser.parse_args(arguments)
    own = (options.clients[0], options.seeds, options.cases, options.most)
    run(options, Trial, lambda experiment: measure(experiment, *own), table)


if __name__ == "__main__":
    main()
