"""torchvision's networks without their classifiers, with the ImageNet-1k weights (version 1) that the papers use.

torchvision is imported when one of them is asked for, not before. Each network keeps torchvision's names, so that both
torchvision's own files and those of a bare ``features`` trunk load strictly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.backbones.architecture import Architecture
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.backbones.weights import official_checkpoint, read_state_file


class _PooledFeatures(nn.Module):
    """The ``features`` of a convolutional network and their global average: (B, 3, H, W) -> (B, d)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.features = network.get_submodule("features")

    def forward(self, images: Tensor) -> Tensor:
        return torch.flatten(F.adaptive_avg_pool2d(self.features(images), 1), 1)


class ClassToken(nn.Module):
    """A vision transformer up to its class token after the final norm: (B, 3, H, W) -> (B, d).

    Sizes other than the trained one resample the position embedding in the forward pass, so that the weights, and the
    fingerprint with them, stay those of the file.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.class_token = network.get_parameter("class_token")
        self.conv_proj = network.get_submodule("conv_proj")
        self.encoder = network.get_submodule("encoder")
        self.patch_size = int(network.patch_size)  # type: ignore[arg-type]  # an int, which nn.Module cannot say

    def forward(self, images: Tensor) -> Tensor:
        """Return the class token (B, d) of images (B, 3, H, W).

        Raises
        ------
        ValueError
            If a side is no multiple of the patch size.
        """
        height, width = images.shape[-2:]
        if height % self.patch_size or width % self.patch_size:
            raise ValueError(f"sides must be multiples of the patch size {self.patch_size}, got {height} x {width}")
        patches = self.conv_proj(images)  # (B, d, rows, columns)
        rows, columns = patches.shape[-2:]
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches.flatten(2).mT], dim=1)
        tokens = tokens + self._position_embedding(rows, columns)
        encoded: Tensor = self.encoder.ln(self.encoder.layers(tokens))  # type: ignore[operator]
        return encoded[:, 0]

    def _position_embedding(self, rows: int, columns: int) -> Tensor:
        trained = self.encoder.get_parameter("pos_embedding")  # (1, 1 + side^2, d)
        side = round((trained.shape[1] - 1) ** 0.5)
        if (rows, columns) == (side, side):
            return trained
        grid = trained[:, 1:].mT.reshape(1, -1, side, side)
        resampled = F.interpolate(grid, size=(rows, columns), mode="bicubic", align_corners=True)
        return torch.cat([trained[:, :1], resampled.flatten(2).mT], dim=1)


def _without_fc(network: nn.Module) -> nn.Module:
    network.fc = nn.Identity()
    return network


# name: (what is left of the network, prefix of the classifier's keys)
_TRUNKS: dict[str, tuple[Callable[[nn.Module], nn.Module], str]] = {
    "squeezenet1_1": (_PooledFeatures, "classifier."),  # d = 512
    "mobilenet_v2": (_PooledFeatures, "classifier."),  # d = 1280
    "resnet18": (_without_fc, "fc."),  # d = 512
    "resnet50": (_without_fc, "fc."),  # d = 2048
    "efficientnet_b0": (_PooledFeatures, "classifier."),  # d = 1280
    "vit_b_16": (ClassToken, "heads."),  # d = 768
    "vit_b_32": (ClassToken, "heads."),  # d = 768
}
TORCHVISION_NAMES = tuple(_TRUNKS)


def torchvision_architecture(name: str) -> Architecture:
    """Describe one of torchvision's networks, by torchvision's name for it."""
    from torchvision.models import get_model, get_model_weights

    trunk, classifier_prefix = _TRUNKS[name]
    weights = get_model_weights(name)["IMAGENET1K_V1"]
    preset = weights.transforms()

    def official_weights() -> tuple[Mapping[str, Tensor], str]:
        return read_state_file(official_checkpoint(weights.url)), f"torchvision {weights}"

    return Architecture(
        build=lambda: trunk(get_model(name, weights=None)),
        transform=ImageTransform(
            input_size=preset.crop_size[0],
            mean=tuple(preset.mean),
            std=tuple(preset.std),
            interpolation=preset.interpolation.value,
        ),
        official_weights=official_weights,
        classifier_prefixes=(classifier_prefix,),
        licence="bsd-3-clause (torchvision; the terms of ImageNet may apply too)",
        largest_feature=6.0 if name == "mobilenet_v2" else math.inf,  # the mean of a ReLU6
    )
