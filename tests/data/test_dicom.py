"""DICOM files are read as a viewer would first show them: the modality's values, the window, which end is white."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from fedstats_app.data import DatasetError, UnreadableSampleError, images, load_dataset
from fedstats_app.data.contents import sample_digest
from fedstats_app.data.images import read_dicom

RAMP = np.arange(0, 4096, 64, dtype=np.uint16).reshape(8, 8)  # 0, 64, ... 4032
LUT = [0, 1000, 2000, 4000]


def written(path: Path, pixels: NDArray[Any], **tags: Any) -> Path:
    """Write a file of these pixels, (height, width), (frames, height, width) or (height, width, 3)."""
    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID, made.file_meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, CTImageStorage
    made.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    made.PatientName = "Doe^Jane"
    made.SamplesPerPixel = 3 if pixels.shape[-1] == 3 else 1
    made.PhotometricInterpretation = "RGB" if made.SamplesPerPixel == 3 else "MONOCHROME2"
    if made.SamplesPerPixel == 3:
        made.PlanarConfiguration = 0
    elif pixels.ndim == 3:
        made.NumberOfFrames = len(pixels)
    made.Rows, made.Columns = pixels.shape[:2] if made.SamplesPerPixel == 3 else pixels.shape[-2:]
    made.BitsAllocated = made.BitsStored = 8 * pixels.dtype.itemsize
    made.PixelRepresentation = int(pixels.dtype.kind == "i")
    made.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(made, name, value)
    made.HighBit = made.BitsStored - 1
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save_as(path, enforce_file_format=True)
    return path


def shown(path: Path) -> NDArray[np.uint8]:
    return np.asarray(read_dicom(path))


def expected(share: NDArray[Any]) -> NDArray[np.uint8]:
    return np.rint(255 * np.clip(share, 0, 1)).astype(np.uint8)


@pytest.mark.parametrize("bits", [12, 16])
def test_without_a_window_the_bits_stored_are_the_range(tmp_path: Path, bits: int) -> None:
    found = shown(written(tmp_path / "a.dcm", RAMP, BitsStored=bits))
    assert np.array_equal(found, expected(RAMP / (2**bits - 1)))
    assert len(np.unique(found)) == (64 if bits == 12 else 17)  # as of a PNG of 16 bits that uses 12


@pytest.mark.parametrize(("function", "width"), [("LINEAR", 399), ("LINEAR_EXACT", 400), ("SIGMOID", 400)])
def test_the_first_window_is_laid_over_hounsfield_units(tmp_path: Path, function: str, width: float) -> None:
    """CT: stored values minus 1024; bone and air lie beyond the window of soft tissue."""
    window = {"WindowCenter": [40, 600], "WindowWidth": [400, 2000], "VOILUTFunction": function}
    path = written(tmp_path / "a.dcm", RAMP, RescaleSlope=1, RescaleIntercept=-1024, **window)
    units = RAMP.astype(float) - 1024
    share = (units - (39.5 if function == "LINEAR" else 40)) / width + 0.5
    if function == "SIGMOID":
        share = 1 / (1 + np.exp(-4 * (units - 40) / 400))
    assert np.array_equal(shown(path), expected(share)) and (shown(path).min(), shown(path).max()) == (0, 255)


def test_in_monochrome1_the_lowest_is_white(tmp_path: Path) -> None:
    plain = shown(written(tmp_path / "a.dcm", RAMP, BitsStored=12))
    turned = shown(written(tmp_path / "b.dcm", RAMP, BitsStored=12, PhotometricInterpretation="MONOCHROME1"))
    assert plain[0, 0] == 0 and turned[0, 0] == 255 and np.abs(255 - plain.astype(int) - turned).max() <= 1


@pytest.mark.parametrize("what", ["no DICOM", "no pixels", "palette", "table", "truncated", "bomb"])
def test_what_cannot_be_read_is_one_sample(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "cat" / "a.dcm", RAMP)
    written(tmp_path / "dog" / "b.dcm", RAMP)
    data = pydicom.dcmread(path)
    if what == "palette":
        data.PhotometricInterpretation = "PALETTE COLOR"
    elif what == "table":
        item = Dataset()
        item.LUTDescriptor, item.LUTData = [len(LUT), 0, 16], np.array(LUT, dtype="<u2").tobytes()
        data.VOILUTSequence = [item]
    elif what == "truncated":
        data.PixelData = data.PixelData[:20]
    elif what == "no pixels":
        del data.PixelData
    elif what == "bomb":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 63)
    data.save_as(path)
    if what == "no DICOM":
        path.write_bytes(b"text")
    dataset = load_dataset(f"folder:{tmp_path}", "train")
    with pytest.raises(UnreadableSampleError, match=r"cat/a\.dcm") as raised:
        dataset.sample(0)
    assert "Doe" not in str(raised.value)


def test_a_folder_of_dicom_files_is_a_data_set(tmp_path: Path) -> None:
    for name, patient in (("a", "Doe^Jane"), ("b", "Doe^John")):
        written(tmp_path / "train" / "cat" / f"{name}.DCM", RAMP, PatientName=patient)
    written(tmp_path / "train" / "dog" / "c.dcm", RAMP[::-1])
    dataset = load_dataset(f"folder:{tmp_path}", "train")
    sample = dataset.sample(0)
    assert isinstance(sample, Image.Image) and (sample.mode, sample.size) == ("RGB", (8, 8)) and not sample.info
    # Two patients' names on one picture: the same sample.
    assert sample_digest(dataset, 0) == sample_digest(dataset, 1) != sample_digest(dataset, 2)


def test_where_pydicom_is_not_installed_its_extra_is_named(tmp_path: Path) -> None:
    written(tmp_path / "cat" / "a.dcm", RAMP)
    code = (
        "import sys; sys.modules['pydicom'] = None\n"
        "from pathlib import Path\n"
        "from fedstats_app.data.images import open_image\n"
        "try:\n"
        f"    open_image(Path({str(tmp_path / 'cat' / 'a.dcm')!r}))\n"  # as a table or predict may name it
        "except ValueError as error:\n"
        "    print(error)\n"
        "from fedstats_app.data.folder import load_folder\n"
        f"load_folder({str(tmp_path)!r}, 'train')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "DICOM is read with `pip install 'fedstats-app[dicom]'`\n"
    assert f"{DatasetError.__name__}: " in done.stderr and "pip install 'fedstats-app[dicom]'` reads it" in done.stderr


def test_threads_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, both = written(tmp_path / "a.dcm", RAMP), threading.Barrier(2)

    def read(path: Path) -> Image.Image:
        with pytest.raises(threading.BrokenBarrierError):
            both.wait(0.05)
        both.reset()
        return read_dicom(path)

    monkeypatch.setattr(images, "read_dicom", read)
    with ThreadPoolExecutor(2) as pool:
        assert len(list(pool.map(images.open_image, [path, path]))) == 2
