"""A node's copy of the tuned model: a deterministic function of what it starts from and of the log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedstats_app.fedmezo.directions import Directions, Probe, flat
from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.perturbation import tunable

DIGEST_BYTES = 16


class Replica:
    """A model and the round of its last update; bit-identical on every node that applied the same updates.

    Every operation is elementwise, in a fixed order, rounded once, and starts from exact theta, which evaluations never
    change. So the bits do not depend on the machine, the number of processes, or interruptions. Multiplication and
    subtraction are separate kernels, since a fused one rounds differently.

    Parameters
    ----------
    model : nn.Module
        At the start; its tuned parameters, those of these names, are changed in place. Errors are those of
        :func:`tunable`.
    names : sequence of str
        As in ``named_parameters()``.
    num_directions : int
        Directions of a round.
    epsilon : float
        Of the probes.
    directions : Directions, optional
        Rademacher by default.

    Attributes
    ----------
    round : int
        Updates applied so far.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        *,
        num_directions: int = 1,
        epsilon: float = 1e-3,
        directions: Directions | None = None,
    ) -> None:
        self.model, self.num_directions, self.epsilon = model, num_directions, epsilon
        self.directions = directions or Directions()
        self.parameters: Mapping[str, Tensor] = tunable(model, sorted(names))
        self.round = 0

    def probes(self, seed: int) -> list[Probe]:
        """Return the directions of a round."""
        return [Probe(seed, index, self.epsilon, self.directions) for index in range(self.num_directions)]

    def apply(self, updates: Sequence[Update]) -> None:
        """Apply the updates of the next rounds, in their order; nothing if one has another number of steps."""
        for update in updates:
            if len(update.steps) != self.num_directions:
                raise ValueError(f"an update must have {self.num_directions} step(s), got {len(update.steps)}")
        for update in updates:
            probes = self.probes(update.seed) if any(update.steps) else []
            for name, parameter in self.parameters.items() if probes else ():
                theta = flat(parameter)
                for parts in zip(*(probe.blocks(parameter, name) for probe in probes), strict=True):
                    value = theta[parts[0][0]]
                    for (_, direction), step in zip(parts, update.steps, strict=True):
                        value -= direction.mul_(step)
            self.round += 1

    def load(self, state: Mapping[str, Tensor], server_round: int) -> None:
        """Take over the :meth:`state` of a replica of the same kind; a ValueError refuses one that does not fit."""
        own = self.state()
        needed, given = (
            {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()} for tensors in (own, state)
        )
        if needed != given:
            raise ValueError(f"the state must have {needed}, got {given}")
        for name, tensor in own.items():
            tensor.copy_(state[name])  # into the memory of the parameters
        self.round = server_round

    def state(self) -> dict[str, Tensor]:
        """Return the tuned parameters by name, sharing their memory."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def digest(self) -> bytes:
        """Return 16 bytes of a sha256 over name, dtype, shape and bytes of every tuned parameter."""
        whole = hashlib.sha256()
        for name, tensor in self.state().items():
            value = tensor.cpu()
            whole.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
            whole.update(value.view(-1).view(torch.uint8).numpy().data)
        return whole.digest()[:DIGEST_BYTES]

    @property
    def is_finite(self) -> bool:
        """True if every tuned parameter is finite."""
        return all(bool(parameter.isfinite().all()) for parameter in self.parameters.values())
