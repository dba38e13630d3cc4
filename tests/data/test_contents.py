"""Digests of what samples hold: equal only where samples are read alike."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstats_app.data import Dataset
from fedstats_app.data.contents import sample_digest
from tests.data.conftest import write_png
from tests.data.test_folder_layout import both


class Memory:
    """Samples in memory."""

    def __init__(self, *samples: Image.Image | str) -> None:
        self._samples = samples

    def open(self, index: int) -> Image.Image | str:
        sample = self._samples[index]
        return sample if isinstance(sample, str) else sample.copy()

    def name(self, index: int) -> str:
        return str(index)


def digests(*samples: Image.Image | str) -> list[bytes | None]:
    dataset = Dataset("memory", ("one",), np.zeros(len(samples), np.int64), "", Memory(*samples))
    return [sample_digest(dataset, index) for index in range(len(samples))]


def test_pixels_of_another_shape_or_mode_are_others() -> None:
    values = bytes(range(12))
    one, same, turned, colour = digests(
        Image.frombytes("L", (4, 3), values),
        Image.frombytes("L", (4, 3), values),
        Image.frombytes("L", (3, 4), values),
        Image.frombytes("RGB", (2, 2), values),
    )
    assert one == same and one is not None
    assert len({one, turned, colour}) == 3


@pytest.mark.parametrize("mode", ["P", "RGBA", "I;16", "CMYK", "LA"])
def test_pixels_that_do_not_say_how_they_look_have_no_digest(mode: str) -> None:
    assert digests(Image.new(mode, (2, 2))) == [None]


def test_texts_go_by_their_letters() -> None:
    one, same, other = digests("good film", "good film", "good  film")
    assert one == same != other


def test_files_go_by_their_bytes_not_their_names(tmp_path: Path) -> None:
    write_png(tmp_path / "a" / "0.png", (1, 2, 3))
    write_png(tmp_path / "b" / "1.png", (1, 2, 3))
    write_png(tmp_path / "b" / "2.png", (1, 2, 4))
    (tmp_path / "b" / "3.png").write_bytes(b"no image")
    dataset, _ = both(tmp_path)
    first, second, third, broken = (sample_digest(dataset, index) for index in range(4))
    assert first == second != third and first is not None
    assert broken is None
