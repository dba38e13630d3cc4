"""Coverage of sets of classes (:mod:`fedstats_app.heads.coverage`) on test samples that nothing was fitted on.

    python -m research.benchmarks.coverage "dataset=parquet:/data/signs input-size=224"

An experiment is one of :func:`research.benchmarks.features.settings_of`. Heads are made from the training split alone,
spread over ten sites by Dirichlet(0.1). Bounds come from a fifth of each site's samples, kept apart ("kept"), from the
same counted under a floor of 5 ("floor"), or from training samples, each left out of the ridge ("left out"). One line
of JSON is printed per method and way, means over seeds, and then a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstats_app.data.partition import _dirichlet as dirichlet
from fedstats_app.heads import LinearHead, MarginHistograms, margin_bins, solve_gaussian, solve_ncm, solve_ridge
from fedstats_app.heads.coverage import LabelMargins
from fedstats_app.heads.leave_one_out import LeaveOneOut
from fedstats_app.heads.scores import NUM_MARGIN_BINS
from fedstats_app.privacy.evaluation import label_margins_above_floor
from fedstats_app.statistics import FeatureStatistics
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, run

COVERAGES = (0.8, 0.9, 0.95)
KEPT, FLOOR = 0.2, 5


@dataclass(frozen=True)
class Trial:
    """Coverage of one method's sets.

    Attributes
    ----------
    experiment, method, way
        Data and network; the head; whose margins the bounds are from.
    accuracy : float
        Of the head, 0 to 1.
    covered, size : dict
        By coverage promised, the share of test samples whose set holds the right class, and the mean number of classes
        in a set.
    """

    experiment: str
    method: str
    way: str
    accuracy: float
    covered: dict[str, float]
    size: dict[str, float]


def bounds(sites: Sequence[Tensor], head: LinearHead, features: Tensor, labels: Tensor, floor: int) -> LabelMargins:
    """Return margins of the samples that sites kept; under a floor one histogram of all classes, as it leaves them."""
    num_classes = len(head.present)
    by_class, pooled = MarginHistograms.zeros(num_classes), torch.zeros(NUM_MARGIN_BINS, dtype=torch.int64)
    for kept in sites:
        bins = margin_bins(head.logits(features[kept]))
        if floor:
            pooled.index_add_(0, *label_margins_above_floor(labels[kept], bins, floor).unbind(dim=1))
        else:
            by_class.count_(bins, labels[kept])
    return LabelMargins(pooled + by_class.positives.sum(dim=0), by_class.positives, "kept")


def judged(features: Features, head: LinearHead, margins: LabelMargins) -> tuple[list[float], list[float]]:
    """Return shares covered and mean sizes at every coverage, NaN where the samples cannot promise it."""
    logits, labels = head.logits(features.test), features.test_labels.unsqueeze(1)
    found = [margins.sets(logits, share) for share in COVERAGES if share <= margins.largest_coverage]
    refused = [float("nan")] * (len(COVERAGES) - len(found))
    covered = [float(chosen.gather(1, labels).double().mean()) for chosen in found]
    return covered + refused, [float(chosen.sum(dim=1).double().mean()) for chosen in found] + refused


def trials(features: Features, seed: int, sites: int) -> Iterator[tuple[str, str, float, list[float], list[float]]]:
    """Yield method, way, accuracy, shares covered and sizes of one split."""
    train, labels, number = features.train, features.train_labels, features.num_classes
    draw = np.random.default_rng(seed)
    parts = [
        torch.from_numpy(part[draw.permutation(len(part))])
        for part in dirichlet(labels.numpy(), sites, 0.1, seed, shuffled=True)
    ]
    held = [part[: round(KEPT * len(part))] for part in parts]
    rest = torch.cat([part[round(KEPT * len(part)) :] for part in parts])
    own, whole = (FeatureStatistics.from_features(train[part], labels[part], number) for part in (rest, slice(None)))
    heads = {
        "FedNCM": solve_ncm(own),
        "Fed3R": solve_ridge(own, ridge_lambda="auto"),
        "FedCGS": solve_gaussian(own, covariance="within", shrinkage="auto"),
    }
    for method, head in heads.items():
        for way, floor in (("kept", 0), ("floor", FLOOR)):
            margins = bounds(held, head, train, labels, floor)
            yield method, way, features.accuracy(head), *judged(features, head, margins)
    ridge = solve_ridge(whole, ridge_lambda="auto")
    left_out = LeaveOneOut.of(whole, ridge.report.parameters["ridge_lambda"])
    by_class = MarginHistograms.zeros(number).count_(margin_bins(left_out.logits(ridge, train, labels)), labels)
    margins = LabelMargins(by_class.positives.sum(dim=0), by_class.positives, "left out")
    yield "Fed3R", "left out", features.accuracy(ridge), *judged(features, ridge, margins)


def table(lines: Sequence[Trial]) -> str:
    """Return coverage (%) and size of the sets as Markdown."""
    promised = [f"{100 * coverage:g} %: covered, classes" for coverage in COVERAGES]
    rows = [
        f"| data | head | bounds | accuracy | {' | '.join(promised)} |",
        "|---|---|---|---|" + "---|" * len(promised),
    ]
    for line in lines:
        shown = [(line.covered[str(share)], line.size[str(share)]) for share in COVERAGES]
        cells = ["-" if covered != covered else f"{100 * covered:.1f}, {size:.2f}" for covered, size in shown]
        name = line.experiment.split()[0].rpartition("/")[2]
        rows.append(f"| {name} | {line.method} | {line.way} | {100 * line.accuracy:.1f} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line of JSON per method and way, then the table."""
    options = experiments_of(__doc__, clients=[10], seeds=5).parse_args(argv)

    def measure(experiment: str) -> Iterator[Trial]:
        features = features_of(config_of(experiment))
        found: dict[tuple[str, str], list[list[float]]] = {}
        for seed in range(options.seeds):
            for method, way, accuracy, covered, size in trials(features, seed, options.clients[0]):
                found.setdefault((method, way), []).append([accuracy, *covered, *size])
        for (method, way), of_seeds in found.items():
            accuracy, *shares = np.mean(of_seeds, axis=0).round(4).tolist()  # NaN where any seed has one
            ends = [str(share) for share in COVERAGES]
            covers, sizes = (dict(zip(ends, part, strict=True)) for part in (shares[: len(ends)], shares[len(ends) :]))
            yield Trial(experiment, method, way, accuracy, covers, sizes)

    run(options, Trial, measure, table)


if __name__ == "__main__":
    main()
