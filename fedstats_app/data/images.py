"""The one rule by which an image file becomes 8-bit RGB pixels.

Features can only be compared, and statistics only be added, if every site reads the same file as the same pixels. So
the rule is stated here once and used for every source of data.
"""

import numpy as np
from PIL import Image, ImageOps

_GREY_16_BIT_MODES = frozenset({"I", "I;16", "I;16L", "I;16B", "I;16N"})
_MAX_16_BIT = 65535


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image as 8-bit RGB, the same way for every source of data.

    In this order: the first frame of several; the orientation that the EXIF data ask for; 16-bit grey (modes ``I;16*``,
    and
    ``I`` with values in 0..65535) scaled linearly from the whole 16-bit range, ``round(value / 257)``, whatever range
    the image uses and without regard to a transparent colour; transparency (an alpha channel or a transparent colour)
    composited on white; everything else (grey, 1 bit, palette, CMYK, YCbCr, HSV) by Pillow's conversion, which
    replicates grey to the three channels and ignores colour profiles.

    Parameters
    ----------
    image : PIL.Image.Image
        Any image; it may still be unread. It is left as it is, but for being read.

    Returns
    -------
    PIL.Image.Image
        A new image in mode ``RGB``.

    Raises
    ------
    ValueError
        If the pixels have no stated range: mode ``F``, or mode ``I`` with values outside 0..65535; or if Pillow has no
        conversion from the image's mode (``LAB``).
    PIL.Image.DecompressionBombError
        If the image has more pixels than ``PIL.Image.MAX_IMAGE_PIXELS``, at which Pillow itself would only warn.
    OSError
        If the pixels cannot be read.
    """
    _refuse_decompression_bomb(image)
    if image.tell() != 0:
        image.seek(0)
    upright = ImageOps.exif_transpose(image)
    if upright.mode in _GREY_16_BIT_MODES:
        return _grey_16_to_8_bit(upright).convert("RGB")
    if upright.mode == "F":
        raise ValueError("floating-point pixels (mode F) have no stated range; save them with 8 or 16 bits per channel")
    if upright.has_transparency_data:
        colours = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours).convert("RGB")
    return upright.convert("RGB")


def _refuse_decompression_bomb(image: Image.Image) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        raise Image.DecompressionBombError(
            f"{image.width} x {image.height} pixels are more than the {limit} that are read"
            " (PIL.Image.MAX_IMAGE_PIXELS); such a file may be an attack on memory"
        )


def _grey_16_to_8_bit(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)  # (height, width)
    if values.size and (values.min() < 0 or values.max() > _MAX_16_BIT):
        raise ValueError(
            f"grey values from {values.min()} to {values.max()} are outside the 16-bit range 0..{_MAX_16_BIT}, "
            f"the only one that mode {image.mode} is read in"
        )
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))
