"""What the registry holds for each backbone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedstats_app.backbones.transform import ImageTransform

OfficialWeights = Callable[[], tuple[Mapping[str, Tensor], str]]


@dataclass(frozen=True)
class Architecture:
    """A network without classifier, its own transform, and where its weights come from.

    Attributes
    ----------
    build : callable
        Makes the network, randomly initialised, on the CPU: (B, 3, H, W) -> (B, d).
    transform : ImageTransform
        At the input size that the network was trained for.
    official_weights : callable or None
        Returns a state dict and, in words, where it came from; None if the architecture has none.
    classifier_prefixes : tuple of str
        Of the keys in a state dict that belong to the classifier.
    rename_key : callable
        From a key of the published state dict, classifier left out, to the network's own.
    """

    build: Callable[[], nn.Module]
    transform: ImageTransform
    official_weights: OfficialWeights | None = None
    classifier_prefixes: tuple[str, ...] = ()
    rename_key: Callable[[str], str] = str  # of a key of the file: as it is
