"""A classifier as one network from pixels or tokens to probabilities, for an exporter."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.heads import LinearHead
from fedstats_app.report.classifier import Classifier
from fedstats_app.report.export.pillow_resize import Order, pillow_resize
from fedstats_app.statistics import FeatureMap


class _Probabilities(nn.Module):
    """From features to probabilities in float32: feature map, head, temperature, softmax.

    The mean of the rows is taken off the weights, and the temperature is divided into them, in float64: the softmax is
    the same, with less to be lost to rounding.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, feature_map: FeatureMap, head: LinearHead, temperature: float) -> None:
        super().__init__()
        self.feature_map = feature_map
        known = head.present
        weight, bias = ((part - part[known].mean(dim=0)) / temperature for part in (head.weight, head.bias))
        self.register_buffer("weight", weight.masked_fill(~known[:, None], 0.0).to(torch.float32))
        self.register_buffer("bias", bias.masked_fill(~known, -torch.inf).to(torch.float32))

    def forward(self, features: Tensor) -> Tensor:
        return torch.softmax(self.feature_map(features) @ self.weight.T + self.bias, dim=1)


class ImageNetwork(nn.Module):
    """Images (N, H, W, 3) uint8 in, probabilities (N, C) float32 out.

    Parameters
    ----------
    classifier : Classifier
        For images.
    order : str or None
        As `pillow_resize` takes it; None leaves resizing out, and H and W are then the backbone's input size.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, classifier: Classifier, order: Order | None) -> None:
        super().__init__()
        transform = classifier.backbone.transform
        assert isinstance(transform, ImageTransform)  # noqa: S101  # an image network has no other
        self.side, self.interpolation, self.order = transform.input_size, transform.interpolation, order
        # (pixel / 255 - mean) / std as one product and one sum in float32.
        mean, std = np.array(transform.mean), np.array(transform.std)
        for name, values in (("scale", 1.0 / (255.0 * std)), ("shift", -mean / std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).reshape(3, 1, 1))
        self.backbone = _on_cpu(classifier.backbone)
        self.probabilities = _Probabilities(classifier.feature_map, classifier.head, classifier.temperature)

    def forward(self, images: Tensor) -> Tensor:
        """Return the probabilities (N, C) of images (N, H, W, 3)."""
        if self.order is None:
            pixels = images.permute(0, 3, 1, 2)
        else:
            pixels = pillow_resize(images, self.side, self.interpolation, self.order)
        made: Tensor = self.probabilities(self.backbone(pixels.to(torch.float32) * self.scale + self.shift))
        return made


class TextNetwork(nn.Module):
    """Token ids and attention mask (N, T) int64 in, probabilities (N, C) float32 out.

    Parameters
    ----------
    classifier : Classifier
        For texts.
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.backbone = _on_cpu(classifier.backbone)
        self.probabilities = _Probabilities(classifier.feature_map, classifier.head, classifier.temperature)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the probabilities (N, C) of texts (N, T)."""
        made: Tensor = self.probabilities(self.backbone(torch.stack([input_ids, attention_mask], dim=1)))
        return made


def _on_cpu(backbone: Backbone) -> nn.Module:
    return backbone.module.eval().to("cpu").to(memory_format=torch.contiguous_format)
