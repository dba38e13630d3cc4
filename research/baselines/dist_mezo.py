"""MeZO in a federation that sends the model before every round (DistMeZO), beside FedMeZO, which sends seeds.

Both measure the same slopes and make the same update of them, so their models are the same bits; only what goes down
differs. Bernier's thesis compares their bytes.
"""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from fedstats_app.fedmezo.log import SEED_LIMIT, Update, pack_updates
from fedstats_app.fedmezo.perturbation import Perturbation, projected_gradients
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.training.samples import TensorSamples, generator

Sends = Literal["seeds", "model"]
_SEED = struct.Struct("<q")
# Keeps this draw apart from those of clients and batches.
_ROUND_SEEDS = 0xD157
_BATCH = 1024


@dataclass(frozen=True)
class Travelled:
    """Bytes of all clients and rounds, down from the server and up to it."""

    down: int
    up: int


def federated_mezo(
    model: nn.Module,
    names: Sequence[str],
    clients: Sequence[tuple[Tensor, Tensor]],
    *,
    num_rounds: int,
    learning_rate: float,
    sends: Sends,
    directions: int = 1,
    seed: int = 0,
    on_round: Callable[[Update], object] | None = None,
) -> Travelled:
    """Tune a model in place by MeZO with all clients in every round, weights n_k.

    Parameters
    ----------
    model : nn.Module
        From (b, d) inputs to (b, C) logits; the server's, float32.
    names : sequence of str
        Its tuned parameters, as in ``named_parameters()``.
    clients : sequence of tuple of Tensor
        Inputs (n, d) and labels (n,) int64 of each; those without samples are never asked.
    num_rounds : int
        R.
    learning_rate : float
        Of the update lr / P sum_p g_p z_p.
    sends : {"seeds", "model"}
        "seeds": a round's seed and the update before it go down, and every client keeps a model that follows
        (FedMeZO). "model": the seed and all tuned parameters go down, and no client keeps anything (DistMeZO).
    directions : int
        P, slopes of a round.
    seed : int
        At least 0; decides the rounds' seeds.
    on_round : callable, optional
        Given the update of every round.

    Raises
    ------
    Diverged
        If a loss is not finite.
    ValueError
        If `sends` is another word, or no client has a sample.
    """
    if sends not in get_args(Sends):
        raise ValueError(f"sends must be one of {', '.join(get_args(Sends))}, got {sends!r}")
    held = [TensorSamples(*samples) for samples in clients if len(samples[1])]
    if not held:
        raise ValueError(f"clients: one must have a sample, got {len(clients)} without")
    total = sum(len(samples.labels) for samples in held)
    server = Replica(model, names, num_directions=directions)
    replicas = [Replica(copy.deepcopy(model), names, num_directions=directions) for _ in held]
    down = up = 0
    last: list[Update] = []
    for server_round in range(1, num_rounds + 1):
        round_seed = int(generator((seed, server_round), _ROUND_SEEDS).integers(SEED_LIMIT))
        gathered: list[tuple[float, ...]] = []
        for replica, samples in zip(replicas, held, strict=True):
            if sends == "model":
                state = server.state()
                replica.load(state, server_round - 1)
                down += sum(value.numel() * value.element_size() for value in state.values())
            else:
                replica.apply(last)
                down += len(pack_updates(last))
            down += _SEED.size
            perturbation = Perturbation(replica.model, names)
            slopes = projected_gradients(perturbation, samples, _BATCH, replica.probes(round_seed))
            up += 8 * len(slopes)  # float64
            gathered.append(tuple(len(samples.labels) / total * slope for slope in slopes))
        steps = tuple(learning_rate / directions * math.fsum(parts) for parts in zip(*gathered, strict=True))
        last = [Update(round_seed, steps)]
        server.apply(last)
        if on_round is not None:
            on_round(last[0])
    return Travelled(down, up)
