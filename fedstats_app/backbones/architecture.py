"""Description of each backbone in the registry, and layers that are put into or behind a network.

Initial weights that are the same in every process, GroupNorm in place of BatchNorm, pooling of a transformer's tokens.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.base.threads import machine_bytes

# What the features are, by the pooling.
DESCRIPTIONS: dict[str, str] = {
    "pooled": "the network's own pooled output",
    "cls": "the class token",
    "mean": "the mean of the patch tokens",
    "cls+mean": "the class token, then the mean of the patch tokens",
}
# Of any network's layers, those in others included.
MOST_LAYERS = 20_000
UNKNOWN_LICENCE = "unknown"
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
    pool : callable
        From the network with its weights to the one whose outputs are the features, and in words what those are.
    identity : str
        What enters the fingerprint in place of the name, where sites may know the network by several names or it has
        arguments; "" for the name.
    licence : str
        Of the official weights, as their publisher names it.
    largest_feature : float
        A bound that the network's last operation sets; infinite if it sets none.
    other_sizes : str
        What to do where the network refuses a size, with ``{size}`` in the place of the number.
    """

    build: Callable[[], nn.Module]
    transform: ImageTransform
    official_weights: OfficialWeights | None = None
    classifier_prefixes: tuple[str, ...] = ()
    rename_key: Callable[[str], str] = str
    convert: Callable[[Mapping[str, Tensor], str], Mapping[str, Tensor]] = lambda state, source: state
    pool: Callable[[nn.Module], tuple[nn.Module, str]] = lambda network: (network, DESCRIPTIONS["pooled"])
    identity: str = ""
    licence: str = UNKNOWN_LICENCE
    largest_feature: float = math.inf
    other_sizes: str = ""


@contextlib.contextmanager
def random_initialisation(name: str) -> Iterator[None]:
    """Draw initial weights from a stream that depends on the name alone, and leave the caller's stream untouched.

    Raises
    ------
    ValueError
        If the network that is built meanwhile, whose size a folder or a head may say, has more than ``MOST_LAYERS``
        layers or weights than fit this machine's memory.
    """
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    memory, layers, size = machine_bytes() or math.inf, 0, 0

    def count(_module: nn.Module, _key: str, added: nn.Module | nn.Parameter | None) -> None:
        nonlocal layers, size
        layers += isinstance(added, nn.Module)
        size += added.nbytes if isinstance(added, nn.Parameter) and added.device.type != "meta" else 0
        if layers > MOST_LAYERS or size > memory:
            raise ValueError(f"{name} must have at most {MOST_LAYERS:,} layers, and weights that fit this machine")

    with torch.random.fork_rng(devices=[]), torch.device("cpu"), contextlib.ExitStack() as hooks:
        hooks.enter_context(register_module_module_registration_hook(count))
        hooks.enter_context(register_module_parameter_registration_hook(count))
        torch.default_generator.manual_seed(seed)
        yield


def group_norm(module: nn.Module, num_groups: int = 8) -> nn.Module:
    """Return a copy of a network with GroupNorm in place of every BatchNorm2d.

    GroupNorm (Wu and He, ECCV 2018) has no running statistics, so clients have none to disagree about; Fed3R's
    MobileNet has it, with 8 groups. Weight, bias and epsilon carry over, but a channel is then normalised by other
    statistics than those that the network was trained with: features change, and a closed-form head must be solved on
    the new ones.

    Parameters
    ----------
    module : nn.Module
        Left as it is; a network without BatchNorm comes back as a plain copy.
    num_groups : int
        Wanted for each layer; where it does not divide the channels, their greatest common divisor.

    Raises
    ------
    ValueError
        If num_groups is below 1, or a BatchNorm layer is of another kind (1d, 3d, or a subclass that does more).
    """
    if num_groups < 1:
        raise ValueError(f"num_groups must be at least 1, got {num_groups}")
    made = copy.deepcopy(module)
    replacements: dict[nn.Module, nn.GroupNorm] = {}  # a layer used at two places stays one layer
    for name, layer in list(made.named_modules(remove_duplicate=False)):
        if not isinstance(layer, _BatchNorm):
            continue
        if type(layer) is not nn.BatchNorm2d:
            raise ValueError(f"only BatchNorm2d can be replaced by GroupNorm, {name!r} is a {type(layer).__name__}")
        if layer not in replacements:
            replacements[layer] = _group_norm_like(layer, num_groups)
        if not name:
            return replacements[layer]
        parent, _, attribute = name.rpartition(".")
        setattr(made.get_submodule(parent), attribute, replacements[layer])
    return made


def _group_norm_like(layer: nn.BatchNorm2d, num_groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    made = nn.GroupNorm(math.gcd(num_groups, channels), channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        made.weight, made.bias = layer.weight, layer.bias
    return made.train(layer.training)


def pool_tokens(tokens: Tensor, num_prefix: int, pooling: str) -> Tensor:
    """Pool the last hidden states (B, T, d) of an image's tokens.

    Parameters
    ----------
    tokens : Tensor
        ``num_prefix`` class and register tokens, the class token first, then one token per patch.
    num_prefix : int
        Tokens that are not in the mean.
    pooling : {"cls", "mean", "cls+mean"}
        The class token, the mean over patches, or both, one after the other, as Virchow's authors do: (B, 2 d).

    Raises
    ------
    ValueError
        If there is no class token to take.
    """
    if pooling != "mean" and num_prefix < 1:
        raise ValueError(f"backbone-pooling {pooling!r} needs a class token, and this network has none")
    parts = {"cls": lambda: tokens[:, 0], "mean": lambda: tokens[:, num_prefix:].mean(dim=1)}
    return torch.cat([parts[name]() for name in pooling.split("+")], dim=1)


class PoweredFeatures(nn.Module):
    """A network whose features are raised to a power and scaled to length one: (B, ...) -> (B, d).

    Tukey's ladder of powers (Yang, Liu and Xu 2021, "Free lunch for few-shot learning", eq. 3) makes the skewed
    features behind a ReLU more like normal ones. Features below 1e-8 count as that, so that the root has a gradient.

    Parameters
    ----------
    network : nn.Module
        Makes the features; its weights are named ``powered.*``, so the fingerprint is another.
    power : float
        Above 0.

    Attributes
    ----------
    norm_bound : float
        Largest norm of a feature.
    """

    norm_bound = 1.0

    def __init__(self, network: nn.Module, power: float) -> None:
        super().__init__()
        self.powered, self._power = network, power

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features (B, d) of length 1."""
        return nn.functional.normalize(self.powered(inputs).clamp(min=1e-8).pow(self._power))


class PooledTokens(nn.Module):
    """A network whose method of this name gives tokens (B, T, d), pooled as by :func:`pool_tokens`."""

    def __init__(self, network: nn.Module, method: str, num_prefix: int, pooling: str) -> None:
        super().__init__()
        self.network = network
        self._method, self._num_prefix, self._pooling = method, num_prefix, pooling

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images (B, 3, H, W)."""
        return pool_tokens(getattr(self.network, self._method)(images), self._num_prefix, self._pooling)
