"""Pixels are those of Pillow, whatever the sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedstats_app.report.export import pillow_resize as module
from fedstats_app.report.export.pillow_resize import FILTERS, order_of_pillow, pillow_resize

SIZES = st.integers(1, 150)


@pytest.mark.parametrize("interpolation", FILTERS)
@settings(max_examples=25, deadline=None)
@given(width=SIZES, height=SIZES, side=st.integers(1, 80), seed=st.integers(0, 9), hard=st.booleans())
def test_it_is_pillow(interpolation: str, width: int, height: int, side: int, seed: int, hard: bool) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    if hard:  # edges from black to white, at which a cubic overshoots
        pixels = 255 * (pixels // 128)
    order = order_of_pillow(interpolation)
    assert order is not None
    made = pillow_resize(torch.from_numpy(pixels)[None], side, interpolation, order)
    wanted = np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling[interpolation.upper()]))
    assert made.dtype == torch.float64 and (made[0].permute(1, 2, 0).numpy() == wanted).all()


def test_images_of_a_batch_do_not_touch_each_other() -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), dtype=np.uint8))
    together = pillow_resize(pixels, 11, "bicubic", "by size")
    assert torch.equal(together, torch.cat([pillow_resize(one[None], 11, "bicubic", "by size") for one in pixels]))


def test_another_filter_and_a_pillow_of_another_kind_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert order_of_pillow("lanczos") is None
    monkeypatch.setattr(module, "_ONE", 128.0)  # as if Pillow computed with more bits than we do
    assert order_of_pillow("bicubic") is None
