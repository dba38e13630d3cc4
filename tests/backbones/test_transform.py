import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from fedstats_app.backbones.transform import ImageTransform

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _photo(width: int, height: int) -> Image.Image:
    """Noise of middling greys: no filter overshoots 0 or 255, where PIL would cut between its two passes."""
    return Image.fromarray(np.random.default_rng(3).integers(64, 192, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("width", "height"), [(20, 33), (97, 41), (48, 48)])
def test_agrees_with_torch_resampling(interpolation: str, width: int, height: int) -> None:
    photo = _photo(width, height)
    ours = ImageTransform(48, _MEAN, _STD, interpolation)(photo)
    pixels = torch.tensor(np.asarray(photo)).permute(2, 0, 1)[None].double()
    resized = F.interpolate(pixels, size=(48, 48), mode=interpolation, antialias=True)[0].clamp(0, 255)
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (_MEAN, _STD))
    expected = (resized / 255 - mean) / std
    assert ours.shape == (3, 48, 48) and ours.dtype == torch.float32
    # PIL rounds to whole grey levels, after each of its two passes: at most 2 of 255, over the smallest std.
    assert (ours - expected).abs().max() < 2.0 / 255 / min(_STD)


def test_nothing_is_cropped() -> None:
    pixels = np.zeros((28, 56, 3), dtype=np.uint8)
    pixels[:, :2] = 255  # left edge of a wide image
    pixels[:2, :] = 255  # top edge
    out = ImageTransform(28, (0.0,) * 3, (1.0,) * 3)(Image.fromarray(pixels))
    assert (out[:, :, 0] > 0.5).all() and (out[:, 0, :] > 0.5).all()
    assert (out[:, 14:, 14:] == 0).all()


def test_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="1 to 4096 pixels, got 0"):
        ImageTransform(0, _MEAN, _STD)
    with pytest.raises(ValueError, match=r"bilinear.*got 'cubic'"):
        ImageTransform(8, _MEAN, _STD, "cubic")
    with pytest.raises(ValueError, match="std above 0"):
        ImageTransform(8, _MEAN, (0.2, 0.0, 0.2))
