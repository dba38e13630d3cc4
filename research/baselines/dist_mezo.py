"""MeZO in steps of each client's own, whose models the server averages: DistMeZO of Bernier's thesis, section 4.1.2.

With one step a round along a direction that all clients share, the average of the models is FedMeZO's update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.fedmezo.log import SEED_LIMIT, Update
from fedstats_app.fedmezo.perturbation import Perturbation, projected_gradients, tuned_names
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples, generator

# Keep the draws of directions and of batches apart.
_DIRECTIONS, _BATCHES = 0xD157, 0xBA7C
_SHARED = -1


@dataclass(frozen=True)
class DistMezoOptions:
    """Options of the clients' steps in a round.

    Attributes
    ----------
    learning_rate, epsilon : float
        Of a step, and how far the loss is probed on both sides.
    local_steps : int
        Steps of a client in a round, each along a direction of its own.
    batch_size : int
        Samples of a step; all where a client has fewer.
    own_directions : bool
        True if each client draws its own directions (DistMeZO); else all take the same (FedMeZO, at one step).
    """

    learning_rate: float
    local_steps: int = 1
    batch_size: int = 64
    own_directions: bool = True
    epsilon: float = 1e-3


def averaged_mezo(
    model: TunedModel,
    clients: Sequence[tuple[Tensor, Tensor]],
    options: DistMezoOptions,
    *,
    num_rounds: int,
    seed: int = 0,
    after_round: Callable[[], None] = lambda: None,
) -> None:
    """Train all of a model in place: every client steps from the server's model, and clients weigh by their samples.

    Parameters
    ----------
    model : TunedModel
        Of what the clients hold.
    clients : sequence of tuple of Tensor
        Features (n, d) float32 and labels (n,) int64 of each; those without samples are left out.
    options : DistMezoOptions
        Of the clients' steps.
    num_rounds : int
        R.
    seed : int
        At least 0; with round, step and client it decides directions and batches.
    after_round : callable
        Is called whenever the model is a round's average.

    Raises
    ------
    Diverged
        If a loss is not finite.
    """
    names = tuned_names(model, "full")
    perturbation, replica = Perturbation(model, names), Replica(model, names, epsilon=options.epsilon)
    total = sum(len(labels) for _, labels in clients)
    for server_round in range(1, num_rounds + 1):
        start = {name: value.clone() for name, value in replica.state().items()}
        mean = {name: torch.zeros_like(value) for name, value in start.items()}
        for client, (inputs, labels) in enumerate(clients):
            if not len(labels):
                continue
            replica.load(start, server_round)
            for step in range(options.local_steps):
                who = client if options.own_directions else _SHARED
                key = (seed, server_round, step)
                direction = int(generator((*key, who + 1), _DIRECTIONS).integers(SEED_LIMIT))
                size = min(options.batch_size, len(labels))
                batch = torch.from_numpy(generator((*key, client), _BATCHES).permutation(len(labels))[:size])
                samples = TensorSamples(inputs[batch], labels[batch])
                slopes = projected_gradients(perturbation, samples, size, replica.probes(direction))
                replica.apply([Update(direction, (options.learning_rate * slopes[0],))])
            for name, value in replica.state().items():
                mean[name].add_(value, alpha=len(labels) / total)
        replica.load(mean, server_round)
        after_round()
