"""What is seen of images without a network."""

import numpy as np
import pytest
from PIL import Image

from fedstats_app.data.appearance import Appearance, appearance_of, copies, unlike


def image(colour: tuple[int, int, int], side: int = 20) -> Image.Image:
    return Image.new("RGB", (side, side + 1), colour)


def test_copies_in_two_classes_are_grouped_and_those_in_one_are_not() -> None:
    found = [appearance_of(sample) for sample in (image((1, 2, 3)), image((9, 9, 9)), image((1, 2, 3)), "a", "a")]
    assert copies(found, np.array([0, 0, 1, 0, 0])) == [[0, 2]]
    assert copies(found, np.array([0, 0, 0, 0, 2])) == [[3, 4]]
    # The same bytes in another shape are another image.
    assert appearance_of(image((1, 2, 3)).transpose(Image.Transpose.ROTATE_90)).digest != found[0].digest


def test_brightness_and_grey_are_shares() -> None:
    half = image((255, 0, 0))
    half.paste((128, 128, 128), (0, 0, 10, 21))
    seen = appearance_of(half)
    assert seen.pixels == 420 and 0.4 < seen.brightness < 0.43 and 0.45 < seen.grey < 0.55
    assert appearance_of(image((255, 255, 255)))[1:] == (1.0, 420, 1.0)


def test_what_differs_from_nearly_all_others_is_named() -> None:
    usual = [Appearance(b"", 0.5 + 0.001 * step, 10_000, 0.1) for step in range(-20, 20)]
    strange = [
        Appearance(b"", 0.02, 10_000, 0.1),
        Appearance(b"", 0.99, 640_000, 0.1),
        Appearance(b"", 0.5, 10_000, 1.0),
    ]
    words = {40: "dark", 41: "bright, large", 42: "grey"}
    assert unlike([*usual, *strange]) == words and unlike(usual) == unlike([]) == {}
    assert unlike([*[seen._replace(grey=1.0) for seen in usual], usual[0]]) == {40: "coloured"}


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_grey_that_is_common_is_not_named(share: float) -> None:
    assert unlike([Appearance(b"", 0.5, 10_000, float(step < 100 * share)) for step in range(100)]) == {}
