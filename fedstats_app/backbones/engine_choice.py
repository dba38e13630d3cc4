"""Which engine runs one network on this machine: known when it is first asked for, since that may take an export."""

from __future__ import annotations

import functools
import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedstats_app.backbones.engine import (
    BFLOAT16,
    TORCH,
    Engine,
    EngineError,
    chosen_engine,
    openvino_version,
)
from fedstats_app.backbones.inputs import InputTransform
from fedstats_app.data.feature_cache import default_cache_root

if TYPE_CHECKING:
    from fedstats_app.backbones.openvino_engine import OpenVINOEngine

logger = logging.getLogger("fedstats_app")


class EngineChoice:
    """The engine of a network.

    Parameters
    ----------
    asked : {"auto", "torch", "openvino", "openvino-bf16"}
        The option.
    module : nn.Module
        The network.
    weights_fingerprint : str
        Of weights, name and transform.
    transform : InputTransform
        Of the network.
    device, autocast : str
        Where and how torch would compute.
    cache : Path or None
        Folder of the caches; None for the default one.

    Attributes
    ----------
    fingerprint : str
        That of the weights, or of them in bfloat16.

    Raises
    ------
    ModuleNotFoundError, ValueError
        See :func:`fedstats_app.backbones.engine.chosen_engine`.
    """

    def __init__(
        self,
        asked: str,
        module: nn.Module,
        weights_fingerprint: str,
        transform: InputTransform,
        *,
        device: str,
        autocast: str,
        cache: Path | None,
    ) -> None:
        number = sum(one.numel() for one in module.parameters())
        self._chosen, self._reason = chosen_engine(asked, device=device, autocast=autocast, num_weights=number)
        self._asked, self._module, self._cache = asked, module, cache
        self._weights_fingerprint, self._transform = weights_fingerprint, transform
        self.fingerprint = weights_fingerprint
        if self._chosen == BFLOAT16:
            self.fingerprint = hashlib.sha256(f"{BFLOAT16} {weights_fingerprint}".encode()).hexdigest()

    @functools.cached_property
    def openvino(self) -> OpenVINOEngine | None:
        """OpenVINO with the network exported; None for torch, also where "auto" would have liked it and it cannot.

        Raises
        ------
        EngineError
            If an engine that was named cannot run the network.
        """
        if self._chosen == TORCH:
            return None
        from fedstats_app.backbones.openvino_engine import OpenVINOEngine

        root, bfloat16 = self._cache or default_cache_root(), self._chosen == BFLOAT16
        engine = OpenVINOEngine(self._module, self._weights_fingerprint, self._transform, root, bfloat16=bfloat16)
        try:
            engine.prepare()
        except EngineError as error:
            if self._asked != "auto":
                raise EngineError(f"engine {self._asked}: {error}; use engine torch") from error
            self._reason = f"not OpenVINO: {error}"
            logger.warning("engine torch: %s", error)
            return None
        return engine

    @property
    def engine(self) -> Engine:
        """What computes the features."""
        return TORCH if self.openvino is None else self._chosen

    @property
    def in_words(self) -> str:
        """The engine with its version and precision, and why."""
        if self.engine == TORCH:
            return f"torch {torch.__version__} ({self._reason})"
        precision = "bfloat16" if self.engine == BFLOAT16 else "float32"
        return f"OpenVINO {openvino_version()} in {precision} ({self._reason})"
