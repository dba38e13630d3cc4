"""Sending the model instead of seeds changes bytes and nothing else."""

import copy

import pytest
import torch
from torch import Tensor

from fedstats_app.fedmezo.directions import Probe
from fedstats_app.fedmezo.perturbation import Perturbation, mean_loss, projected_gradients
from fedstats_app.heads import LinearHead
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples
from research.baselines.dist_mezo import federated_mezo
from research.formulas import TableSizes, formula_bytes
from tests.research.baselines.conftest import Clients

NAMES = ("head.weight", "head.bias")
ROUNDS, RATE = 6, 0.05


def start() -> TunedModel:
    weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    return TunedModel(LinearHead(weight, torch.zeros(4)), tune="probe")


def weights(model: TunedModel) -> list[Tensor]:
    return [value for _, value in sorted(model.trained_state().items())]


@pytest.mark.parametrize("directions", [1, 3])
def test_the_same_bits_come_of_both_and_only_the_model_is_heavy(clients: Clients, directions: int) -> None:
    owned = list(clients.values())
    options = {"num_rounds": ROUNDS, "learning_rate": RATE, "directions": directions, "seed": 2}
    light, heavy, begun = start(), start(), start()
    seeds = federated_mezo(light, NAMES, owned, sends="seeds", **options)  # type: ignore[arg-type]
    models = federated_mezo(heavy, NAMES, owned, sends="model", **options)  # type: ignore[arg-type]
    for one, other, before in zip(weights(light), weights(heavy), weights(begun), strict=True):
        assert torch.equal(one, other) and not torch.equal(one, before)
    parameters = sum(one.numel() for one in weights(light))
    assert models.up == seeds.up == 8 * directions * ROUNDS * len(owned)
    assert models.down == ROUNDS * len(owned) * (4 * parameters + 8)
    # A seed, and the update of the round before, of which the first has none.
    assert seeds.down == len(owned) * (8 * ROUNDS + (ROUNDS - 1) * (8 + 8 * directions))
    sizes = TableSizes(rounds=ROUNDS, clients=len(owned), parameters=parameters, directions=directions)
    formula = formula_bytes("distmezo", sizes)  # a byte a scalar, and no seed
    assert models.down + models.up - formula == ROUNDS * len(owned) * (8 + 7 * directions)


def test_it_is_centralised_mezo(clients: Clients) -> None:
    features, labels = (torch.cat(parts) for parts in zip(*clients.values(), strict=True))
    samples, seeds = TensorSamples(features, labels), []
    federated = start()
    before = mean_loss(Perturbation(federated, NAMES), samples, 99)
    federated_mezo(
        federated, NAMES, list(clients.values()), num_rounds=ROUNDS, learning_rate=RATE, sends="model",
        on_round=lambda update: seeds.append(update),
    )  # fmt: skip
    central = copy.deepcopy(start())
    perturbation, parameters = Perturbation(central, NAMES), dict(central.named_parameters())
    for update in seeds:
        probe = Probe(update.seed, 0, 1e-3)
        (slope,) = projected_gradients(perturbation, samples, 99, [probe])
        assert update.steps[0] == pytest.approx(RATE * slope, rel=1e-3)
        for name in NAMES:
            moved = probe.perturbed(parameters[name], name, 1) - parameters[name].data
            parameters[name].data -= update.steps[0] * moved / 1e-3
    for one, other in zip(weights(federated), weights(central), strict=True):
        assert torch.allclose(one, other, atol=1e-3)
    assert mean_loss(perturbation, samples, 99) < before


def test_what_it_cannot_do_is_refused(clients: Clients) -> None:
    with pytest.raises(ValueError, match=r"sends must be one of seeds, model, got 'all'"):
        federated_mezo(start(), NAMES, list(clients.values()), num_rounds=1, learning_rate=0.1, sends="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clients: one must have a sample, got 1 without"):
        empty = (torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
        federated_mezo(start(), NAMES, [empty], num_rounds=1, learning_rate=0.1, sends="seeds")
