"""Models whose BatchNorm sees a batch's own statistics while it is trained, as in the papers' simulators."""

from __future__ import annotations

from typing import Literal, Self

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedstats_app.heads import LinearHead
from fedstats_app.training.model import TunedModel

# Handling of the running statistics.
BatchNorm = Literal["kept", "averaged"]


class AdaptingModel(TunedModel):
    """A backbone and head that are trained whole, a batch normalised by its own statistics.

    A batch of one sample has no statistics worth the name (PyTorch refuses one value per channel): it runs with the
    running ones and leaves them as they are.

    Parameters
    ----------
    head, backbone, tune_bias, temperature
        As :class:`TunedModel`.
    batch_norm : {"kept", "averaged"}
        "kept": the running statistics of the start are kept, and used in evaluation (FLSim's way: only parameters are
        aggregated). "averaged": as PyTorch does, and the running statistics travel with the parameters.
    """

    def __init__(
        self,
        head: LinearHead | tuple[Tensor, Tensor],
        backbone: nn.Module,
        batch_norm: BatchNorm,
        *,
        tune_bias: bool = True,
        temperature: float = 1.0,
    ) -> None:
        self._layers: dict[str, _BatchNorm] = {}
        super().__init__(head, backbone=backbone, tune="full", tune_bias=tune_bias, temperature=temperature)
        layers = {name: layer for name, layer in self.named_modules() if isinstance(layer, _BatchNorm)}
        self._layers = {name: layer for name, layer in layers.items() if layer.running_mean is not None}
        self.batch_norm: BatchNorm = batch_norm

    @property
    def buffer_names(self) -> frozenset[str]:
        """Names in :meth:`trained_state` of running statistics, which are averaged but follow no gradient."""
        if self.batch_norm == "kept":
            return frozenset()
        return frozenset(f"{name}.{kind}" for name in self._layers for kind in ("running_mean", "running_var"))

    def train(self, mode: bool = True) -> Self:
        """Switch BatchNorm between training and evaluation; other layers run as in evaluation."""
        super().train(False)
        self.training = mode
        self._use_batch_statistics(mode)
        return self

    def _trained(self) -> dict[str, Tensor]:
        names, buffers = self.buffer_names, dict(self.named_buffers())
        return dict(sorted({**super()._trained(), **{name: buffers[name] for name in names}}.items()))

    def features(self, inputs: Tensor) -> Tensor:
        """Return the features (B, D); a batch of one sample has no statistics of its own."""
        if not self.training or len(inputs) > 1:
            return super().features(inputs)
        self._use_batch_statistics(False)
        try:
            return super().features(inputs)
        finally:
            self._use_batch_statistics(True)

    def _use_batch_statistics(self, use: bool) -> None:
        for layer in self._layers.values():
            layer.train(use)
            # Where it is off, PyTorch normalises a training batch by its own statistics and leaves the buffers alone.
            layer.track_running_stats = not (use and self.batch_norm == "kept")
