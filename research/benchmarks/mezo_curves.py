"""Accuracy over rounds of FedMeZO, of DistMeZO and of SLoRA: the thesis's figures 4.2 and 4.3 on a small model.

    python -m research.benchmarks.mezo_curves dataset=builtin --alphas 100 0.1 --seeds 3

The model is a hidden layer of random features and a head of zeros on the frozen backbone; ten clients train it, on an
iid split (alpha 100) and another. MeZO's methods have the same directions' distribution, batches and rates; of the
rates the one with the best mean accuracy at the end counts for each. One line of JSON is printed per training, then a
table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedstats_app.data.clients import partitions
from fedstats_app.training.local import Diverged
from fedstats_app.training.model import TunedModel
from research.baselines.dist_mezo import DistMezoOptions, averaged_mezo
from research.baselines.mlp_head import mlp_head
from research.benchmarks.adapters import Federation
from research.benchmarks.baselines import MB
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, mean_and_half, run

POINTS = 4


@dataclass(frozen=True)
class Curve:
    """One training.

    Attributes
    ----------
    alpha : float
        Of the split.
    seed : int
        Of split, start and draws.
    method : str
        Trained model and method.
    rate : float
        Of MeZO's steps; 0 for SLoRA, whose clients have the rate of the other benchmarks.
    accuracy : list of float
        In per cent, after each quarter of the rounds; 0 from where a loss was not finite.
    megabytes : float
        Both ways, of all rounds: by the thesis for FedMeZO, else four bytes a number.
    """

    alpha: float
    seed: int
    method: str
    rate: float
    accuracy: list[float]
    megabytes: float


class _Watch:
    """Notes a model's accuracy at each quarter of its rounds."""

    def __init__(self, federation: Federation, num_rounds: int) -> None:
        self._federation, self._rounds, self._round = federation, num_rounds, 0
        self.accuracy: list[float] = []

    def __call__(self, model: TunedModel) -> None:
        self._round += 1
        if self._round * POINTS // self._rounds > (self._round - 1) * POINTS // self._rounds:
            self.accuracy.append(self._federation.accuracy(model))


def measure(
    data: Features,
    parts: Sequence[np.ndarray],
    seed: int,
    options: Sequence[tuple[str, DistMezoOptions]],
    *,
    hidden: int,
    mezo_rounds: int,
    slora_rounds: int,
) -> Iterator[tuple[str, float, list[float], float]]:
    """Yield method, rate, accuracies and megabytes of every training of one split."""
    federation = Federation(data, parts, seed, hidden=hidden, num_rounds=slora_rounds, fraction=1.0)
    watch = _Watch(federation, slora_rounds)
    _, sent = federation.slora(watch)
    yield "SLoRA", 0.0, watch.accuracy, sent
    clients = sum(len(labels) > 0 for _, labels in federation.clients)
    for name, mezo in options:
        model = mlp_head(federation.dim, (hidden,), data.num_classes, seed=seed)
        numbers = sum(value.numel() for value in model.trained_state().values())
        watch = _Watch(federation, mezo_rounds)

        def after_round(watch: _Watch = watch, model: TunedModel = model) -> None:
            watch(model)

        try:
            averaged_mezo(model, federation.clients, mezo, num_rounds=mezo_rounds, seed=seed, after_round=after_round)
        except Diverged:
            watch.accuracy += [0.0] * (POINTS - len(watch.accuracy))
        a_round = 8 * clients * numbers if mezo.own_directions else 3 * clients
        yield name, mezo.learning_rate, watch.accuracy, mezo_rounds * a_round / MB


def best(lines: Sequence[Curve]) -> list[Curve]:
    """Return the lines of the rate with the best mean accuracy at the end, of lines of one method and split."""

    def at_the_end(rate: float) -> float:
        return float(np.mean([line.accuracy[-1] for line in lines if line.rate == rate]))

    chosen = max(dict.fromkeys(line.rate for line in lines), key=at_the_end)
    return [line for line in lines if line.rate == chosen]


def table(lines: Sequence[Curve]) -> str:
    """Write a Markdown table: means over seeds, in brackets half of the 95% interval."""
    quarters = " | ".join(f"{quarter}/{POINTS} of the rounds" for quarter in range(1, POINTS + 1))
    written = [f"| alpha | trained | rate | {quarters} | MB |", "| --- | --- | ---: |" + " ---: |" * (POINTS + 1)]
    for alpha, method in dict.fromkeys((line.alpha, line.method) for line in lines):
        chosen = best([line for line in lines if (line.alpha, line.method) == (alpha, method)])
        cells = []
        for accuracies in zip(*(line.accuracy for line in chosen), strict=True):
            mean, half = mean_and_half(accuracies)
            cells.append(f"{mean:.2f} ({half:.2f})")
        sent, rate = float(np.mean([line.megabytes for line in chosen])), chosen[0].rate or 0.01
        written.append(f"| {alpha:g} | {method} | {rate:g} | {' | '.join(cells)} | {sent:.3g} |")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(10,), seeds=3)
    parser.add_argument("--alphas", type=float, nargs="+", default=[100.0, 0.1])
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3])
    parser.add_argument("--local-steps", type=int, nargs="+", default=[1, 5], help="of DistMeZO's clients in a round")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64, help="units of the layer")
    parser.add_argument("--rounds", type=int, nargs=2, default=[200, 20], help="of MeZO, and of SLoRA")
    options = parser.parse_args(arguments)
    if min(options.rounds) < POINTS:
        parser.error(f"--rounds must be at least {POINTS}, the points of a curve, got {options.rounds}")
    kinds = [("FedMeZO", 1, False)]
    kinds += [(f"DistMeZO, {steps} local step(s)", steps, True) for steps in options.local_steps]
    mezo = [
        (name, DistMezoOptions(rate, local_steps=steps, batch_size=options.batch, own_directions=own))
        for name, steps, own in kinds
        for rate in options.rates
    ]

    def curves(experiment: str) -> Iterator[Curve]:
        data = features_of(config_of(experiment))
        for alpha in options.alphas:
            for clients in options.clients:
                for seed in range(options.seeds):
                    own = config_of(experiment, num_clients=clients, seed=seed, dirichlet_alpha=alpha)
                    found = measure(
                        data,
                        partitions(own.data, own.partition, seed),
                        seed,
                        mezo,
                        hidden=options.hidden,
                        mezo_rounds=options.rounds[0],
                        slora_rounds=options.rounds[1],
                    )
                    yield from (Curve(alpha, seed, *curve) for curve in found)

    run(options, Curve, curves, table)


if __name__ == "__main__":
    main()
