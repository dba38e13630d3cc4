"""How many rounds FedMeZO takes to the same loss along plain directions and along those that HiSo scales.

    python -m research.benchmarks.mezo_rounds "dataset=parquet:/data/sst2 backbone=all-MiniLM-L6-v2"

On cached features, without Flower: with weights n_k the split over clients does not matter. *exact* is scaled by the
true diagonal of the Hessian at the start, which nobody knows: what an estimate could gain at most.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from fedstats_app.heads import LinearHead, solve_ncm
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples
from fedstats_app.training.zeroth_order.directions import Directions, Probe
from fedstats_app.training.zeroth_order.hessian import DiagonalHessian, ScaledDirections
from fedstats_app.training.zeroth_order.log import Update
from fedstats_app.training.zeroth_order.measures import best_temperature, curvatures, losses_by_temperature
from fedstats_app.training.zeroth_order.perturbation import Perturbation, mean_loss, projected_gradients
from fedstats_app.training.zeroth_order.rate_guard import LearningRate
from fedstats_app.training.zeroth_order.replica import Replica
from research.benchmarks.features import features_of, settings_of

NAMES = ("head.weight", "head.bias")
# Rounds between two looks at the loss.
EVERY = 10
BATCH = 1 << 20


def start_of(features: Tensor, labels: Tensor, num_classes: int) -> LinearHead:
    """Return FedNCM's head at the temperature of the least loss."""
    head = solve_ncm(FeatureStatistics.from_features(features, labels, num_classes))
    samples = TensorSamples(features, labels)
    temperature = best_temperature(losses_by_temperature(TunedModel(head, tune="probe"), samples, BATCH))
    return LinearHead(head.weight / temperature, head.bias.nan_to_num(neginf=0.0) / temperature)


def exact_diagonal(head: LinearHead, features: Tensor) -> dict[str, Tensor]:
    """Return the diagonal of the Hessian of the mean cross-entropy, divided by its mean, by parameter."""
    inputs = torch.cat([features.double(), torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
    shares = (features.double() @ head.weight.T + head.bias).softmax(1)
    diagonal = (shares * (1.0 - shares)).T @ inputs.square() / len(features)
    # Coordinates that hardly matter are not scaled up without end.
    diagonal = (diagonal / diagonal.mean()).clamp(min=0.01).float()
    return {"head.weight": diagonal[:, :-1].reshape(-1).contiguous(), "head.bias": diagonal[:, -1].contiguous()}


def losses_of(
    head: LinearHead,
    samples: TensorSamples,
    *,
    smoothing: float,
    exact: dict[str, Tensor] | None,
    rounds: int,
    seed: int,
) -> list[float]:
    """Return the loss before the first round and after every tenth, at the rate that the curvature gives."""
    model = TunedModel(head, tune="probe")
    replica = Replica(model, NAMES, directions=Directions("gaussian"), hessian_smoothing=smoothing)
    if exact is not None:
        fixed = DiagonalHessian(replica.parameters, 0.5)
        fixed.values.update(exact)
        replica.directions = ScaledDirections("gaussian", hessian=fixed)
    perturbation, first = Perturbation(model, NAMES), 1_000_000 * seed
    probes = [Probe(first, index, replica.epsilon, replica.directions) for index in range(8)]
    bend = statistics.fmean(curvatures(perturbation, samples, BATCH, probes))
    rate = LearningRate(0.5 / bend, guarded=True, rates={}, log=())
    losses = [mean_loss(perturbation, samples, BATCH)]
    for number in range(1, rounds + 1):
        slopes = projected_gradients(perturbation, samples, BATCH, replica.probes(first + number))
        replica.apply([Update(first + number, rate.steps(number, slopes))])
        if number % EVERY == 0:
            losses.append(mean_loss(perturbation, samples, BATCH))
    return losses


def quotient(plain: Sequence[float], other: Sequence[float]) -> float:
    """Return how many times as many rounds the plain one takes to the lowest loss that both reach; 1: as many.

    It has two sides: above 1 the other is faster, below 1 slower by the same measure.
    """
    target = max(min(plain), min(other))
    rounds = [next(index for index, loss in enumerate(one) if loss <= target) for one in (plain, other)]
    return max(rounds[0], 1) / max(rounds[1], 1)


def rows(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    smoothings: Sequence[float],
    rounds: int,
    seeds: int,
    samples: int,
) -> list[str]:
    """Return a line for every way to scale: its loss in the end, and the quotients over seeds of samples and draws."""
    ways = [*((f"HiSo, {one:g}", one, False) for one in smoothings), ("exact", 0.0, True)]
    ends: dict[str, list[float]] = {}
    quotients: dict[str, list[float]] = {name: [] for name, *_ in ways}
    for seed in range(seeds):
        chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:samples]
        mine = TensorSamples(features[chosen], labels[chosen])
        head = start_of(features[chosen], labels[chosen], num_classes)
        plain = losses_of(head, mine, smoothing=0.0, exact=None, rounds=rounds, seed=seed)
        ends.setdefault("plain", []).append(plain[-1])
        for name, smoothing, exact in ways:
            diagonal = exact_diagonal(head, features[chosen]) if exact else None
            made = losses_of(head, mine, smoothing=smoothing, exact=diagonal, rounds=rounds, seed=seed)
            ends.setdefault(name, []).append(made[-1])
            quotients[name].append(quotient(plain, made))
    lines = [f"| plain | {statistics.fmean(ends['plain']):.4f} | 1 |"]
    for name, found in quotients.items():
        middle, low, high = statistics.median(found), min(found), max(found)
        lines.append(f"| {name} | {statistics.fmean(ends[name]):.4f} | {middle:.2f} ({low:.2f} to {high:.2f}) |")
    return lines


def main() -> None:
    """Print a table of every experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+", help="settings as key=value pairs, or a TOML file")
    parser.add_argument("--smoothings", type=float, nargs="+", default=[0.001, 0.01, 0.1])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=2000)
    given = parser.parse_args()
    for experiment in given.experiments:
        made = features_of(AppConfig.from_run_config(settings_of(experiment)))
        lines = rows(
            made.train, made.train_labels, made.num_classes, given.smoothings, given.rounds, given.seeds, given.samples
        )
        print(
            f"{experiment}\n\n| directions | loss in the end | plain rounds / rounds to the same loss |\n|---|---|---|"
        )
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
