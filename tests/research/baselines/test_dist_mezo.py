"""MeZO whose models are averaged: with shared directions it is FedMeZO, with own ones each client goes its own way."""

from dataclasses import replace

import torch

from fedstats_app.fedmezo.log import SEED_LIMIT, Update
from fedstats_app.fedmezo.perturbation import Perturbation, projected_gradients, tuned_names
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.training.samples import TensorSamples, generator
from research.baselines.dist_mezo import _DIRECTIONS, DistMezoOptions, averaged_mezo
from research.baselines.mlp_head import mlp_head
from tests.research.baselines.conftest import Clients

SHARED = DistMezoOptions(0.02, batch_size=1000, own_directions=False)


def test_one_step_along_shared_directions_is_mezo_in_one_place(clients: Clients) -> None:
    federated, pooled = mlp_head(6, (5,), 4), mlp_head(6, (5,), 4)
    both = [torch.cat(one) for one in zip(*clients.values(), strict=True)]
    averaged_mezo(federated, [*clients.values(), (torch.zeros(0, 6), torch.zeros(0).long())], SHARED, num_rounds=4)
    averaged_mezo(pooled, [(both[0], both[1])], SHARED, num_rounds=4)
    for name, value in pooled.trained_state().items():
        assert torch.allclose(federated.trained_state()[name], value, atol=2e-5), name
        assert not torch.equal(value, mlp_head(6, (5,), 4).trained_state()[name]), name


def test_several_local_steps_go_on_from_one_another(clients: Clients) -> None:
    model, by_hand = mlp_head(6, (5,), 4), mlp_head(6, (5,), 4)
    averaged_mezo(model, [clients[1]], replace(SHARED, own_directions=True, local_steps=3), num_rounds=2)
    # A client alone: six steps one after another, along the directions of (round, step).
    names = tuned_names(by_hand, "full")
    replica, perturbation = Replica(by_hand, names), Perturbation(by_hand, names)
    samples = TensorSamples(*clients[1])
    for server_round in (1, 2):
        for step in range(3):
            seed = int(generator((0, server_round, step, 1), _DIRECTIONS).integers(SEED_LIMIT))
            (slope,) = projected_gradients(perturbation, samples, 1000, replica.probes(seed))
            replica.apply([Update(seed, (0.02 * slope,))])
    for name, value in by_hand.trained_state().items():
        assert torch.allclose(model.trained_state()[name], value, atol=2e-5), name
