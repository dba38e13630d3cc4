"""The papers' FedAdam: torch's Adam on the server, with the clients' average change as the negative of a gradient."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class ServerAdam:
    """Adam on models that come back from clients.

    FedNCM and FedCOF trained with FLSim, whose server hands ``current - average`` to torch.optim.Adam as the
    gradient. Adaptive federated optimisation as published (Reddi et al., ICLR 2021), and as Flower has it, differs: no
    weight decay, and tau = 1e-3 where Adam has eps = 1e-8.

    Parameters
    ----------
    learning_rate : float
        The server's.
    betas : (float, float)
        Decay of the first and second moment.
    eps : float
        Added to the root of the second moment.
    weight_decay : float
        L2, added to the gradient. Pass trained parameters only: Adam normalises also a gradient that is nothing but
        decay, so that frozen ones would shrink as fast as the others learn.
    buffers : frozenset of str
        Names that take the average as it is: running statistics follow no gradient.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    def __init__(
        self,
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-5,
        *,
        buffers: frozenset[str] = frozenset(),
    ) -> None:
        self.learning_rate, self.betas, self.eps, self.weight_decay = learning_rate, betas, eps, weight_decay
        self.buffers = buffers
        self._moments: dict[str, dict[str, Tensor]] = {}

    def step(self, current: Mapping[str, Tensor], average: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the next model, from what clients started from and the average of what came back.

        Both have the same names and shapes, float32 on the CPU, and are left as they are.
        """
        following = {name: average[name].to(torch.float32, copy=True) for name in current}
        parameters = {
            name: nn.Parameter(tensor.detach().to(torch.float32, copy=True))
            for name, tensor in current.items()
            if name not in self.buffers
        }
        if not parameters:
            return following
        adam = torch.optim.Adam(
            parameters.values(), self.learning_rate, self.betas, self.eps, self.weight_decay, foreach=False
        )
        for name, parameter in parameters.items():
            parameter.grad = parameter.detach() - following[name]
            if self._moments:
                adam.state[parameter] = self._moments[name]
        adam.step()
        self._moments = {name: adam.state[parameter] for name, parameter in parameters.items()}
        return following | {name: parameter.detach() for name, parameter in parameters.items()}
