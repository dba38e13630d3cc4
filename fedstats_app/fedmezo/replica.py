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
    """A model and the round whose update it has last applied; bit-identical on every node that did the same.

    Every operation is elementwise, in a fixed order, rounded once, and starts from exact theta (evaluations never touch
    it): so it does not matter on which machine, in how many processes and with which interruptions the updates are
    applied. Multiplication and subtraction are separate kernels, since a fused one rounds differently.

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
            if any(update.steps):
                for name, parameter in self.parameters.items():
                    self._update(parameter, name, update)
            self.round += 1

    def load(self, state: Mapping[str, Tensor], server_round: int) -> None:
        """Take over what :meth:`state` of a replica of the same kind returned; nothing if it does not fit."""
        own = self.state()
        if own.keys() != state.keys():
            raise ValueError(f"the state must have {', '.join(own)}, got {', '.join(sorted(state))}")
        for name, tensor in own.items():
            if (tensor.shape, tensor.dtype) != (state[name].shape, state[name].dtype):
                raise ValueError(
                    f"{name} must be {tuple(tensor.shape)} {tensor.dtype}, "
                    f"got {tuple(state[name].shape)} {state[name].dtype}"
                )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])  # which shares the memory of what it is of
        self.round = server_round

    def state(self) -> dict[str, Tensor]:
        """Return all that the log decides, by name and sharing its memory."""
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
        """Whether every tuned parameter is."""
        return all(bool(parameter.isfinite().all()) for parameter in self.parameters.values())

    def _update(self, parameter: Tensor, name: str, update: Update) -> None:
        theta = flat(parameter)
        streams = [probe.blocks(parameter, name) for probe in self.probes(update.seed)]
        for parts in zip(*streams, strict=True):
            value = theta[parts[0][0]]
            for (_, direction), step in zip(parts, update.steps, strict=True):
                value -= direction.mul_(step)
