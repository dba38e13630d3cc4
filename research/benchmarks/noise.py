"""Accuracy with differential privacy: the mechanism of research/noise beside noise on plain class sums and exact heads.

    python -m research.benchmarks.noise "dataset=builtin" FOLDER/trec6.minilm.train.npz --picture noise.png

An experiment is one of :func:`research.benchmarks.features.settings_of`, whose features are computed from the data, or
a file of features: ``x`` (n, d) and ``y`` (n,), with the test samples beside it in a file that says ``.test.`` in the
place of ``.train.``. ``FILE.npz:coarse`` has its labels from the array ``coarse``. Delta is N^-1.1, the unit is one
sample more or less, and N is known. One line of JSON is printed for every epsilon, then tables: means over draws of the
noise, and in brackets their standard deviations.

``--audit RUNS`` instead attacks the noise, as the integers of ten parties, and prints the epsilon promised and the
lower bound found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedstats_app.heads import LinearHead, solve_gaussian, solve_ncm, solve_ridge
from fedstats_app.heads.noisy import NoisyStatistics
from fedstats_app.secure.account import mu_of, signal_to_noise
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.noisy_words import Division, NoisyLayout, unit
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, printed, run
from research.benchmarks.regularisers import balanced_subset
from research.noise.audit import lower_bound, scores
from research.noise.mechanism import gaussian, plain_sums, release

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
POWER = -1.1  # delta is N to this
# Shares of noise for 30 % that are lost and 10 % that are not to be trusted: of mu^2, so much is left when all come.
LOST = 0.4
# Other constants, one changed at a time.
OTHERS: dict[str, tuple[Division, float]] = {
    "mean 2 %": (Division(mean=0.02), 0.5),
    "mean 10 %": (Division(mean=0.1), 0.5),
    "sums 80 %": (Division(sums=0.8), 0.5),
    "sums 95 %": (Division(sums=0.95), 0.5),
    "ridge a quarter": (Division(), 0.25),
    "ridge one edge": (Division(), 1.0),
}


@dataclass(frozen=True)
class Noisy:
    """One experiment at one epsilon.

    Attributes
    ----------
    experiment : str
        Data and network.
    per_class : int
        Samples of every class, 0 for all.
    num_samples, num_classes, dim : int
        N, C and d.
    epsilon, delta, signal : float
        The promise, and the signal-to-noise ratio that is known before.
    exact : dict
        From head to accuracy in per cent without noise.
    accuracy : dict
        From variant to the accuracies in per cent, one a draw.
    """

    experiment: str
    per_class: int
    num_samples: int
    num_classes: int
    dim: int
    epsilon: float
    delta: float
    signal: float
    exact: dict[str, float]
    accuracy: dict[str, list[float]]


def features_of_file(name: str) -> Features:
    """Read features that are kept in files; see the module.

    Raises
    ------
    ValueError
        If the name does not say which samples are for training.
    """
    path, _, labels = name.partition(":")
    if ".train." not in Path(path).name:
        raise ValueError(f"the file of training samples must have .train. in its name, got {path}")
    (train, train_labels), (test, test_labels) = (
        _arrays(Path(path).with_name(Path(path).name.replace(".train.", part)), labels or "y")
        for part in (".train.", ".test.")
    )
    return Features(train, train_labels, test, test_labels, int(train_labels.max()) + 1)


def _arrays(path: Path, labels: str) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        return torch.from_numpy(arrays["x"]), torch.from_numpy(arrays[labels])


def measure(
    experiment: str, per_class: Sequence[int], epsilons: Sequence[float], seeds: int, *, others: bool
) -> Iterator[Noisy]:
    """Yield the lines of one experiment."""
    whole = features_of_file(experiment) if ".npz" in experiment else features_of(config_of(experiment))
    unit_test = unit(whole.test.double())
    for number in per_class:
        kept = balanced_subset(whole, number, 0)
        train, labels = unit(whole.train[kept].double()), whole.train_labels[kept]
        data = Features(train, labels, unit_test, whole.test_labels, whole.num_classes)
        count, dim = train.shape
        statistics = FeatureStatistics.from_features(train, labels, data.num_classes)
        exact = {
            "Fed3R": 100 * data.accuracy(solve_ridge(statistics, ridge_lambda="auto")),
            "FedNCM": 100 * data.accuracy(solve_ncm(statistics)),
            "FedCGS": 100 * data.accuracy(solve_gaussian(statistics, covariance="within", shrinkage="auto")),
        }
        for epsilon in epsilons:
            mu = mu_of(epsilon, count**POWER)
            found: dict[str, list[float]] = {}
            for seed in range(seeds):
                for name, head in heads(data, mu, seed, others=others):
                    found.setdefault(name, []).append(100 * data.accuracy(head))
            signal = signal_to_noise(count, data.num_classes, dim, mu)
            name = Path(experiment).name.replace(".train.npz", "") if ".npz" in experiment else experiment
            sizes = (count, data.num_classes, dim)
            yield Noisy(name, number, *sizes, epsilon, count**POWER, signal, exact, found)


def heads(data: Features, mu: float, seed: int, *, others: bool) -> Iterator[tuple[str, LinearHead]]:
    """Yield the heads of one draw, by variant."""

    def released(own: Division, promised: float = mu) -> NoisyStatistics:
        noise = gaussian(torch.Generator().manual_seed(1000 + seed))
        count = len(data.train_labels)
        return release(
            data.train, data.train_labels, data.num_classes, num_samples=count, mu=promised, noise=noise, division=own
        )

    noise = gaussian(torch.Generator().manual_seed(seed))
    yield "plain sums", plain_sums(data.train, data.train_labels, data.num_classes, mu=mu, noise=noise)
    out = released(Division())
    yield "FedNCM", out.ncm()
    yield "Fed3R", out.ridge()
    yield "FedCGS", out.gaussian()
    yield "Fed3R, shares", released(Division(), mu * math.sqrt(1 - LOST)).ridge()
    for name, (own, ridge) in OTHERS.items() if others else ():
        yield name, released(own).ridge(ridge)


def table(lines: Sequence[Noisy]) -> str:
    """Return a Markdown table of the accuracy at each epsilon, and one of the constants where others were tried."""
    names = ["plain sums", "FedNCM", "Fed3R", "Fed3R, shares", "FedCGS"]
    epsilons = sorted({line.epsilon for line in lines})
    columns = ["data, N, C, d", "head", *(f"{epsilon:g}" for epsilon in epsilons), "no noise"]
    written = ["| " + " | ".join(columns) + " |", "|---|---|" + "---:|" * (len(epsilons) + 1)]
    places = {(line.experiment, line.per_class): line for line in lines}
    for place, first in places.items():
        title = f"{first.experiment}, {first.num_samples:,}, {first.num_classes}, {first.dim:,}"
        own = {line.epsilon: line for line in lines if (line.experiment, line.per_class) == place}
        for name in names:
            cells = [cell(own[epsilon].accuracy[name]) if epsilon in own else "" for epsilon in epsilons]
            without = first.exact.get(name.partition(",")[0], first.exact["FedNCM"])
            written.append(f"| {title} | {name} | " + " | ".join(cells) + f" | {without:.1f} |")
            title = ""
        signals = [_short(own[epsilon].signal) if epsilon in own else "" for epsilon in epsilons]
        written.append("| | signal to noise | " + " | ".join(signals) + " | |")
    written += ["", "| points gained over | mean | worst | where |", "|---|---:|---:|---|"]
    written.append(_gain("plain sums", "Fed3R", "plain sums", lines))
    tried = [line for line in lines if OTHERS.keys() <= line.accuracy.keys()]
    written += [_gain(f"as built, by {name}", name, "Fed3R", tried) for name in OTHERS if tried]
    return "\n".join(written)


def _gain(title: str, name: str, than: str, lines: Sequence[Noisy]) -> str:
    """Return a row with how much better one variant is than another, on average and where it is worst."""
    gained = [float(np.mean(line.accuracy[name]) - np.mean(line.accuracy[than])) for line in lines]
    where = lines[int(np.argmin(gained))]
    return f"| {title} | {np.mean(gained):+.2f} | {min(gained):+.2f} | {where.experiment}, epsilon {where.epsilon:g} |"


def _short(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def cell(values: Sequence[float]) -> str:
    """Write accuracies as their mean, in brackets their standard deviation if there are several."""
    return f"{np.mean(values):.1f} ({np.std(values, ddof=1):.1f})" if len(values) > 1 else f"{values[0]:.1f}"


def draw(lines: Sequence[Noisy], path: Path) -> None:
    """Draw accuracy against epsilon, an axis for every experiment."""
    from matplotlib.figure import Figure

    places = list({(line.experiment, line.per_class): line for line in lines}.values())
    across = min(len(places), 4)
    figure = Figure(figsize=(3 * across, 2.6 * math.ceil(len(places) / across)), layout="constrained")
    axes = figure.subplots(math.ceil(len(places) / across), across, squeeze=False).flatten()
    for axis in axes[len(places) :]:
        axis.remove()
    for axis, first in zip(axes, places, strict=False):
        own = [line for line in lines if (line.experiment, line.per_class) == (first.experiment, first.per_class)]
        for name, style in (("plain sums", "C7--"), ("FedNCM", "C1-"), ("Fed3R", "C0-")):
            means = [float(np.mean(line.accuracy[name])) for line in own]
            around = [float(np.std(line.accuracy[name])) for line in own]
            axis.errorbar([line.epsilon for line in own], means, around, fmt=style, label=name, marker=".", capsize=2)
        axis.axhline(first.exact["Fed3R"], color="C0", linestyle=":", label="Fed3R, no noise")
        axis.set_xscale("log", base=2)
        axis.set_xticks([line.epsilon for line in own], [f"{line.epsilon:g}" for line in own])
        axis.set_title(f"{first.experiment}, N = {first.num_samples:,}", fontsize="small")
    axes[0].set(xlabel="epsilon", ylabel="accuracy in %")
    axes[0].legend(fontsize="x-small")
    figure.savefig(path, dpi=110, metadata={"Software": None})


@dataclass(frozen=True)
class Audited:
    """Bound of an attacker who knows all samples but one, against ten parties' integer noise."""

    epsilon: float
    delta: float
    runs: int
    lower_bound: float
    mu_promised: float
    mu_found: float


def audit(runs: int, epsilons: Sequence[float], delta: float = 1e-3) -> Iterator[Audited]:
    """Yield a line for every epsilon; the mu found is the distance of both means in standard deviations."""
    for epsilon in epsilons:
        mu = mu_of(epsilon, delta)
        layout = NoisyLayout(2, 4, moments=True, mu=mu)
        absent, present = (scores(runs, layout, present=there) for there in (False, True))
        found = float((present.mean() - absent.mean()) / absent.std())
        yield Audited(epsilon, delta, runs, lower_bound(absent, present, delta), mu, found)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(), seeds=5)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[*EPSILONS])
    parser.add_argument("--per-class", type=int, nargs="+", default=[0], help="samples of every class, 0 for all")
    parser.add_argument("--constants", action="store_true", help="try others than the mechanism's own too")
    parser.add_argument("--picture", type=Path, help="PNG file to write")
    parser.add_argument("--audit", type=int, metavar="RUNS", help="attack the noise, each time with and without")
    options = parser.parse_args(arguments)
    if options.audit is not None:
        printed(audit(options.audit, options.epsilons), options.lines)
        return
    own, others = (options.per_class, options.epsilons, options.seeds), options.constants
    found = run(options, Noisy, lambda experiment: measure(experiment, *own, others=others), table)
    if options.picture is not None:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
