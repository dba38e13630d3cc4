"""What the registry holds for each backbone, and initial weights that are the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedstats_app.backbones.layers import DESCRIPTIONS
from fedstats_app.backbones.licences import UNKNOWN, Licence
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
    convert : callable
        From a state dict that does not fit, and its source in words, to one in the network's layout if it knows how.
    wrap : callable
        What stands round the network once it has its weights, such as another pooling.
    describe : callable
        Says in words what of the built network the features are.
    identity : str
        What enters the fingerprint in place of the name, where sites may know the network by several names or it has
        arguments; "" for the name.
    licence : Licence
        Of the official weights.
    other_sizes : str
        What to do where the network refuses a size, with ``{size}`` in the place of the number.
    """

    build: Callable[[], nn.Module]
    transform: ImageTransform
    official_weights: OfficialWeights | None = None
    classifier_prefixes: tuple[str, ...] = ()
    rename_key: Callable[[str], str] = str
    convert: Callable[[Mapping[str, Tensor], str], Mapping[str, Tensor]] = lambda state, source: state
    wrap: Callable[[nn.Module], nn.Module] = lambda network: network
    describe: Callable[[nn.Module], str] = lambda network: DESCRIPTIONS["pooled"]
    identity: str = ""
    licence: Licence = UNKNOWN
    other_sizes: str = ""


@contextmanager
def random_initialisation(name: str) -> Iterator[None]:
    """Draw initial weights from a stream that depends on the name alone, and leave the caller's stream untouched."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield
