"""A node's copy of the tuned model: a deterministic function of what it starts from and of the log."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedstats_app.training.zeroth_order.directions import Directions, Probe, flat, round_stochastically, rounding_bits
from fedstats_app.training.zeroth_order.hessian import DiagonalHessian, ScaledDirections, unit
from fedstats_app.training.zeroth_order.log import SEED_LIMIT, Update

DIGEST_BYTES = 16
_COEFFICIENTS, _HESSIAN = "coefficients", "diagonal-hessian:"


@dataclass(frozen=True)
class SeedPool:
    """A finite pool of seeds, which bounds what a node must be told, however many rounds it was away (FedKSeed).

    Attributes
    ----------
    first : int
        The pool is first, first + 1, ..., first + size - 1.
    size : int
        K.

    Raises
    ------
    ValueError
        If it is empty or leaves the range of seeds.
    """

    first: int
    size: int

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.first <= SEED_LIMIT - self.size:
            raise ValueError(f"a pool must have at least one seed, all in [0, 2^63), got {self.first} and {self.size}")

    def index(self, seed: int) -> int:
        """Return the position of a seed.

        Raises
        ------
        ValueError
            If it is not in the pool.
        """
        if not 0 <= seed - self.first < self.size:
            raise ValueError(f"seed {seed} is not in the pool [{self.first}, {self.first + self.size})")
        return seed - self.first


class Replica:
    """A model and the round whose update it has last applied; bit-identical on every node that did the same.

    Every operation is elementwise, in a fixed order, rounded once, and starts from exact theta (evaluations never touch
    it): so it does not matter on which machine, in how many processes and with which interruptions the updates are
    applied. Multiplication and subtraction are separate kernels, since a fused one rounds differently.

    Parameters
    ----------
    model : nn.Module
        At the start; its tuned parameters are changed in place. They must be float64, float32 or bfloat16.
    names : sequence of str
        The tuned parameters, as in ``named_parameters()``.
    num_directions : int
        Directions of a round.
    epsilon : float
        Of the probes.
    directions : Directions, optional
        Rademacher by default.
    pool : SeedPool, optional
        With a finite pool of seeds the model is *defined* as the start minus K terms in the pool's order, each with the
        sum of its steps, and rebuilt so after every round; the start is then kept beside it.
    hessian_smoothing : float
        Above 0 directions are scaled by a :class:`~fedstats_app.training.zeroth_order.hessian.DiagonalHessian`, which
        takes 4 bytes a tuned parameter.

    Attributes
    ----------
    round : int
        Updates applied so far.
    coefficients : numpy.ndarray
        (K, num_directions) float64, sums of steps by seed of the pool; (0, num_directions) without one.

    Raises
    ------
    ValueError
        If a name is unknown, a parameter cannot be tuned, or a pool is to be used with bfloat16, in which the
        sum of many small terms is not the model that they led to, or with scaled directions, which depend on the order.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        *,
        num_directions: int = 1,
        epsilon: float = 1e-3,
        directions: Directions | None = None,
        pool: SeedPool | None = None,
        hessian_smoothing: float = 0.0,
    ) -> None:
        if not epsilon > 0.0:
            raise ValueError(f"epsilon must be positive, got {epsilon}")
        parameters = dict(model.named_parameters())
        if unknown := sorted(set(names) - parameters.keys()):
            raise ValueError(f"the model has no parameter {unknown[0]!r}")
        if not names:
            raise ValueError("a replica needs at least one tuned parameter")
        self.model, self.num_directions, self.epsilon, self.pool = model, num_directions, epsilon, pool
        self.directions = directions or Directions()
        self.parameters: dict[str, Tensor] = {name: parameters[name] for name in sorted(names)}
        for name, parameter in self.parameters.items():
            if flat(parameter).dtype == torch.bfloat16 and pool is not None:
                raise ValueError(f"a finite pool of seeds needs float32 or float64 parameters, {name} is bfloat16")
        self.hessian: DiagonalHessian | None = None
        if hessian_smoothing:
            if pool is not None:
                raise ValueError("directions that are scaled by a Hessian exclude a finite pool of seeds")
            self.hessian = DiagonalHessian(self.parameters, hessian_smoothing)
            self.directions = ScaledDirections(self.directions.distribution, hessian=self.hessian)
        self.round = 0
        self.coefficients = np.zeros((0 if pool is None else pool.size, num_directions))
        self._start = {} if pool is None else {name: flat(value).clone() for name, value in self.parameters.items()}

    def probes(self, seed: int) -> list[Probe]:
        """Return the directions of a round."""
        return [Probe(seed, index, self.epsilon, self.directions) for index in range(self.num_directions)]

    def apply(self, updates: Sequence[Update]) -> None:
        """Apply the updates of the next rounds, in their order.

        Raises
        ------
        ValueError
            If one has another number of steps or a seed outside the pool; nothing is changed then.
        """
        for update in updates:
            if len(update.steps) != self.num_directions:
                raise ValueError(f"an update must have {self.num_directions} step(s), got {len(update.steps)}")
            if self.pool is not None:
                self.pool.index(update.seed)
        for update in updates:
            if self.pool is not None:
                self.coefficients[self.pool.index(update.seed)] += update.steps
            elif any(update.steps):
                for name, parameter in self.parameters.items():
                    self._update(parameter, name, update)
            self.round += 1
        if self.pool is not None and updates:
            self._rebuild()

    def load(self, state: Mapping[str, Tensor], server_round: int) -> None:
        """Take over what :meth:`state` of a replica of the same kind returned.

        Raises
        ------
        ValueError
            If names, shapes or dtypes are others; nothing is changed then.
        """
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

    def load_coefficients(self, coefficients: np.ndarray, server_round: int) -> None:
        """Become the replica of a round of a finite pool, whatever it was: that is all a node must be told.

        Parameters
        ----------
        coefficients : numpy.ndarray
            (K, num_directions) float64.
        server_round : int
            After which they are the sums.

        Raises
        ------
        ValueError
            Without a pool, or if shape or dtype are others or a value is not finite.
        """
        expected = self.coefficients.shape
        if self.pool is None or coefficients.shape != expected or not np.isfinite(coefficients).all():
            raise ValueError(f"coefficients must be {expected} finite float64 of a pool, got {coefficients.shape}")
        self.coefficients, self.round = coefficients.astype(np.float64), server_round
        self._rebuild()

    def state(self) -> dict[str, Tensor]:
        """Return all that the log decides, by name and sharing its memory: parameters, a pool's sums, a Hessian."""
        tensors = {name: parameter.detach() for name, parameter in self.parameters.items()}
        if self.pool is not None:
            tensors[_COEFFICIENTS] = torch.from_numpy(self.coefficients)
        if self.hessian is not None:
            tensors |= {_HESSIAN + name: values for name, values in self.hessian.values.items()}
        return tensors

    def digest(self) -> bytes:
        """Return 16 bytes of a sha256 over name, dtype, shape and bytes of every tuned parameter, and of a Hessian."""
        whole = hashlib.sha256()
        for name, tensor in self.state().items():
            if name == _COEFFICIENTS and self.pool is not None:
                continue  # the parameters follow from them
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
        low = theta.dtype == torch.bfloat16
        bits = rounding_bits(update.seed, self.num_directions, name, len(theta), theta.device) if low else None
        shares = unit(update.steps) if self.hessian is not None else ()
        for parts in zip(*streams, strict=True):
            positions = parts[0][0]
            if self.hessian is not None:
                moves = [direction * share for (_, direction), share in zip(parts, shares, strict=True)]
                self.hessian.learn(name, positions, functools.reduce(torch.add, moves).float())
            value = theta[positions].float() if low else theta[positions]
            for (_, direction), step in zip(parts, update.steps, strict=True):
                value -= direction.mul_(step)  # in place: in bfloat16 of a copy, else of theta itself
            if bits is not None:
                theta[positions] = round_stochastically(value, next(bits)[1])

    def _rebuild(self) -> None:
        first = 0 if self.pool is None else self.pool.first
        for name, parameter in self.parameters.items():
            theta = flat(parameter)
            theta.copy_(self._start[name])
            for number, index in np.argwhere(self.coefficients):
                probe = Probe(first + int(number), int(index), self.epsilon, self.directions)
                step = float(self.coefficients[number, index])
                for positions, direction in probe.blocks(parameter, name):
                    theta[positions] -= direction.mul_(step)
