"""From a sample to the tensor that a backbone was trained to see: what every transform has, and that of images.

One rule for every image network: the image is resized straight to ``input_size`` x ``input_size`` pixels, whatever its
aspect ratio, and nothing is cropped. FedCOF's published results use it on most data sets, and no pixel of a small
image (28 or 32 pixels a side) is lost, as it would be to the usual resize and centre crop. Interpolation, mean and
standard deviation are those that the weights were trained with.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedstats_app.backbones.names import MOST_PIXELS
from fedstats_app.data.dataset import Sample

if TYPE_CHECKING:
    from fedstats_app.backbones.text.transform import TextTransform


@dataclass(frozen=True)
class ImageTransform:
    """Resize an RGB image to a square and normalise it.

    Attributes
    ----------
    input_size : int
        Side of the square that comes out, in pixels.
    mean, std : tuple of float
        Per channel (red, green, blue), for pixels scaled to 0..1.
    interpolation : str
        Name of one of PIL's resampling filters in lower case; PIL widens it when it shrinks an image (antialias).
    """

    input_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bilinear"
    kind: ClassVar[Literal["image"]] = "image"
    dtype: ClassVar[torch.dtype] = torch.float32

    def __post_init__(self) -> None:
        filters = [name.lower() for name in Image.Resampling.__members__]
        if not 1 <= self.input_size <= MOST_PIXELS:
            raise ValueError(f"input_size must be 1 to {MOST_PIXELS} pixels, got {self.input_size}")
        if self.interpolation not in filters:
            raise ValueError(f"interpolation must be one of {', '.join(filters)}, got {self.interpolation!r}")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(f"mean and std need 3 values each, std above 0; got mean {self.mean}, std {self.std}")

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The one shape that comes out."""
        return ((3, self.input_size, self.input_size),)

    def blank(self) -> Tensor:
        """Return an image of the mean colour."""
        return torch.zeros(self.shapes[0])

    def probes(self) -> list[Tensor]:
        """Return two images of noise."""
        return list(torch.randn(2, *self.shapes[0], generator=torch.Generator().manual_seed(0)))

    def stack(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return a batch of images."""
        return torch.stack(tuple(inputs))

    @property
    def spec(self) -> dict[str, object]:
        """All that determines the result, as values that JSON can hold."""
        fields = dataclasses.asdict(self)
        return {**fields, "mean": list(self.mean), "std": list(self.std), "resize": "stretch", "antialias": True}

    def __call__(self, image: Sample) -> Tensor:
        """Turn one image into a backbone's input, (3, input_size, input_size) float32 on the CPU.

        What grey, alpha or 16-bit images become is the data source's rule: another mode than RGB is a ValueError.
        """
        if isinstance(image, str) or image.mode != "RGB":
            got = "a text" if isinstance(image, str) else f"mode {image.mode!r}"
            raise ValueError(f"a backbone's transform takes images in mode RGB, got {got}")
        side = (self.input_size, self.input_size)
        resized = image if image.size == side else image.resize(side, Image.Resampling[self.interpolation.upper()])
        pixels = np.asarray(resized)  # (H, W, 3) uint8
        normalised = np.empty((3, *pixels.shape[:2]), dtype=np.float32)
        # By numpy in one thread: torch's thread pool takes milliseconds for this where processes share the cores.
        for channel, levels in enumerate(self._levels):
            np.take(levels, pixels[:, :, channel], out=normalised[channel], mode="clip")
        return torch.from_numpy(normalised)

    @functools.cached_property
    def _levels(self) -> NDArray[np.float32]:
        """(3, 256): what each of the 256 levels of each channel becomes."""
        mean, std = np.array(self.mean)[:, None], np.array(self.std)[:, None]
        levels: NDArray[np.float64] = (np.arange(256) / 255 - mean) / std
        return levels.astype(np.float32)


# From one sample to one of the few tensors that a network may be given. Its shape depends on the sample alone, because
# it decides the last bits of the features.
InputTransform: TypeAlias = "ImageTransform | TextTransform"
