"""Image files: opening one, and DICOM as a viewer would first show it, by pydicom of the extra `dicom`."""

from __future__ import annotations

import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

DICOM = ".dcm"
# Formats of images that Pillow does not read, and what does.
CONVERTERS = {
    ".dcm": "DICOM: `pip install 'fedstats-app[dicom]'` reads it, or write PNG files with `dcmj2pnm +on2` of DCMTK",
    ".heic": "HEIC: write JPEG files with `heif-convert`",
    ".nii": "NIfTI: write a PNG file per slice",
}

# DICOM is decoded when it is opened, before anybody knows how large it is, and with copies of eight bytes a value.
_ONE_AT_A_TIME = threading.Lock()


def regular_file(path: Path) -> Path:
    """Return the path of a sample's file; an OSError refuses a pipe, socket or device, which may block its reader."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is no regular file")
    return path


def open_image(path: Path) -> Image.Image:
    """Open the image of a file, of DICOM by its name."""
    suffix = path.suffix.lower()
    if suffix == DICOM:
        with _ONE_AT_A_TIME:
            return read_dicom(path)
    try:
        return Image.open(path)
    except UnidentifiedImageError as error:
        if suffix in CONVERTERS:
            raise ValueError(CONVERTERS[suffix]) from error
        raise


def read_dicom(path: Path) -> Image.Image:
    """Return the first frame with 8 bits a channel; nothing else of the file is kept, such as who the patient is.

    Stored values become those of the modality (rescale slope and intercept), then grey by the file's first window, or
    from the whole range of the bits stored where it has none. MONOCHROME1 is inverted.

    Raises
    ------
    ValueError
        If pydicom is not there or cannot read it, or its colours are of another kind, or a table is the window.
    PIL.Image.DecompressionBombError
        If it has more pixels than Pillow reads.
    """
    try:
        import pydicom
        from pydicom.pixels import apply_modality_lut, pixel_array
    except ImportError as error:
        raise ValueError("DICOM is read with `pip install 'fedstats-app[dicom]'`") from error
    try:
        header = pydicom.dcmread(path)
        limit, kind = Image.MAX_IMAGE_PIXELS, str(header.PhotometricInterpretation)
        if limit is not None and (number := header.Rows * header.Columns) > limit:
            raise Image.DecompressionBombError(f"{number:,} pixels are more than the {limit:,} that are read")
        if not kind.startswith(("MONOCHROME", "RGB", "YBR")) or "VOILUTSequence" in header:
            raise ValueError(f"{kind} with {'a table' if 'VOILUTSequence' in header else 'such colours'} is not read")
        pixels = pixel_array(header, index=0)
        if not kind.startswith("MONOCHROME"):
            return Image.fromarray((pixels >> max(header.BitsStored - 8, 0)).astype(np.uint8))
        values = apply_modality_lut(pixels, header).astype(np.float64)
        low = -(2 ** (header.BitsStored - 1)) if header.PixelRepresentation else 0
        ends = apply_modality_lut(np.array([low, low + 2**header.BitsStored - 1]), header)
        shown = _windowed(values, header) if "WindowCenter" in header else (values - min(ends)) / float(np.ptp(ends))
    except (AttributeError, RuntimeError, pydicom.errors.InvalidDicomError) as error:  # what pydicom raises
        raise ValueError(f"pydicom cannot read it: {error}") from error
    return Image.fromarray(np.rint(255 * np.clip(1 - shown if kind == "MONOCHROME1" else shown, 0, 1)).astype(np.uint8))


def _windowed(values: NDArray[np.float64], header: Any) -> NDArray[np.float64]:
    """Return where values (height, width) are in the first window, 0 to 1 within it (DICOM PS3.3, C.11.2.1)."""
    centre, width = (float(np.ravel(value)[0]) for value in (header.WindowCenter, header.WindowWidth))
    match header.get("VOILUTFunction", "LINEAR"):
        case "SIGMOID":
            return np.asarray(1 / (1 + np.exp(-4 * (values - centre) / width)))
        case "LINEAR_EXACT":
            return (values - centre) / width + 0.5
    return (values - (centre - 0.5)) / max(width - 1, 1e-9) + 0.5
