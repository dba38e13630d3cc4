"""The image rule, mode by mode, through files as a user has them."""

import io

import numpy as np
import pytest
from PIL import Image

from fedstats_app.data import to_rgb
from fedstats_app.data.dataset import MAX_SIDE


def through_file(image: Image.Image, file_format: str, **options: object) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, format=file_format, **options)
    stream.seek(0)
    return Image.open(stream)


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


def palette() -> Image.Image:
    image = Image.new("P", (2, 1))
    image.putpalette([200, 10, 20, 0, 0, 0])
    image.putpixel((1, 0), 1)
    return image


GREY = np.arange(12, dtype=np.uint8).reshape(1, 12)
COLOURS = np.random.default_rng(0).integers(0, 256, (1, 7, 3), dtype=np.uint8)
CASES: list[tuple[Image.Image, str, dict[str, int], object]] = [
    (Image.fromarray(COLOURS), "PNG", {}, COLOURS[0]),
    (Image.fromarray(GREY), "PNG", {}, np.repeat(GREY[0, :, None], 3, axis=1)),
    (Image.fromarray(np.array([[0, 255]], dtype=np.uint8)).convert("1"), "PNG", {}, [[0, 0, 0], [255, 255, 255]]),
    (Image.new("CMYK", (1, 1), (0, 255, 255, 0)), "TIFF", {}, [[255, 0, 0]]),
    (palette(), "PNG", {}, [[200, 10, 20], [0, 0, 0]]),
    (palette(), "PNG", {"transparency": 1}, [[200, 10, 20], [255, 255, 255]]),
]


@pytest.mark.parametrize(("image", "file_format", "options", "row"), CASES)
def test_modes_become_rgb(image: Image.Image, file_format: str, options: dict[str, int], row: object) -> None:
    np.testing.assert_array_equal(pixels(to_rgb(through_file(image, file_format, **options)))[0], row)


@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_every_16_bit_value_is_rounded_and_8_bit_values_survive(file_format: str) -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    image = through_file(Image.fromarray(values), file_format)
    assert image.mode.startswith("I")
    grey = np.round(values / 257).astype(np.uint8)
    np.testing.assert_array_equal(pixels(to_rgb(image)), np.repeat(grey[:, :, None], 3, axis=2))
    np.testing.assert_array_equal(grey.ravel()[np.arange(256) * 257], np.arange(256))


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.int32(-1), "-1.*16-bit range"), (np.int32(65536), "65536.*16-bit range"), (np.float32(1), "mode F")],
)
def test_pixels_without_a_stated_range_are_refused(value: np.generic, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_rgb(Image.fromarray(np.full((2, 2), value)))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_composited_on_white(mode: str) -> None:
    image = Image.new(mode, (3, 1), 0)
    opaque, half, clear = (
        ((0, 0, 0, 255), (0, 0, 0, 51), (0, 0, 0, 0)) if mode == "RGBA" else ((0, 255), (0, 51), (0, 0))
    )
    for x, value in enumerate((opaque, half, clear)):
        image.putpixel((x, 0), value)
    np.testing.assert_array_equal(pixels(to_rgb(through_file(image, "PNG")))[0, :, 1], [0, 204, 255])


@pytest.mark.parametrize(("orientation", "turns"), [(3, 2), (6, -1), (8, 1)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_exif_orientation_is_applied(orientation: int, turns: int, dtype: type) -> None:
    stored = (np.arange(6).reshape(2, 3) * (40 if dtype is np.uint8 else 40 * 257)).astype(dtype)
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = pixels(to_rgb(through_file(Image.fromarray(stored), "PNG", exif=exif)))
    np.testing.assert_array_equal(turned[:, :, 0], np.rot90(np.arange(6).reshape(2, 3) * 40, turns))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_decompression_bomb_is_refused_where_pillow_only_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 99)
    with pytest.raises(Image.DecompressionBombError, match=r"10 x 10 pixels.*99"):
        to_rgb(through_file(Image.new("L", (10, 10)), "PNG"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert to_rgb(through_file(Image.new("L", (10, 10)), "PNG")).size == (10, 10)


def test_an_image_of_one_column_is_refused_before_it_is_decoded() -> None:
    """Pillow keeps more for each row than its pixels: 89 million rows of one pixel, a file of 90 KB, took 2.6 GB."""
    image = Image.new("L", (1, 1))
    image._size = (1, MAX_SIDE + 1)  # as the header of a file says
    with pytest.raises(Image.DecompressionBombError, match=rf"1 x 65536 pixels.*longer than {MAX_SIDE}"):
        to_rgb(image)
    assert to_rgb(Image.new("L", (1, MAX_SIDE))).size == (1, MAX_SIDE)
