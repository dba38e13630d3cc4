"""What samples hold, and cells of samples of one class."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedstats_app.data import Dataset, load_dataset
from fedstats_app.data.contents import draw_holdout, sample_digest, sample_identities
from fedstats_app.data.dataset import SampleSource
from tests.data.conftest import write_png
from tests.data.test_folder_layout import both
from tests.support.simulation import site_folder


def digests(*samples: Image.Image | str) -> list[bytes | None]:
    source = SampleSource(lambda index: samples[index], str)
    dataset = Dataset("memory", ("one",), np.zeros(len(samples), np.int64), "", source)
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


def test_files_go_by_their_bytes_not_their_names(tmp_path: Path) -> None:
    write_png(tmp_path / "a" / "0.png", (1, 2, 3))
    write_png(tmp_path / "b" / "1.png", (1, 2, 3))
    write_png(tmp_path / "b" / "2.png", (1, 2, 4))
    (tmp_path / "b" / "3.png").write_bytes(b"no image")
    dataset, _ = both(tmp_path)
    first, second, third, broken = (sample_digest(dataset, index) for index in range(4))
    assert first == second != third and first is not None
    assert broken is None


def identities(number: int, salt: int = 0) -> list[bytes]:
    return [hashlib.blake2b(f"{salt} {index}".encode(), digest_size=16).digest() for index in range(number)]


@given(st.integers(0, 200), st.integers(0, 20), st.floats(0.0, 0.9), st.integers(0, 3), st.randoms())
def test_both_parts_are_none_or_at_least_the_floor(
    number: int, floor: int, fraction: float, salt: int, random: object
) -> None:
    samples = identities(number, salt)
    held_out = draw_holdout(samples, floor, fraction)
    random.shuffle(samples)  # type: ignore[attr-defined]

    assert draw_holdout(samples, floor, fraction) == held_out  # whatever the order
    assert set(held_out) <= set(samples) and len(set(held_out)) == len(held_out)
    least = max(floor, 1)
    assert not held_out or min(len(held_out), number - len(held_out)) >= least
    if number >= 2 * least and round(fraction * number):
        assert held_out
    assert len(held_out) <= max(round(fraction * number), least)


def test_a_sample_is_what_it_holds_and_not_its_name_or_date(tmp_path: Path) -> None:
    one = load_dataset(f"folder:{site_folder(tmp_path / 'one', ('ant', 'bee'), seed=1)}", "train")
    for index, path in enumerate(sorted((tmp_path / "one").rglob("*.png"), reverse=True)):
        target = tmp_path / "two" / path.parent.name / f"renamed-{index}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    two = load_dataset(f"folder:{tmp_path / 'two'}", "train")

    assert sorted(sample_identities(one)) == sorted(sample_identities(two))
    assert len(set(sample_identities(one))) == len(one)


def test_copies_and_damaged_files_are_samples_of_their_own(tmp_path: Path) -> None:
    place = Path(site_folder(tmp_path / "site", ("ant",), seed=1, images=3)) / "ant"
    shutil.copyfile(place / "0.png", place / "copy.png")
    for name in ("bad.png", "worse.png"):
        (place / name).write_bytes(b"no image")
    found = sample_identities(load_dataset(f"folder:{place.parent}", "train"))

    assert len(found) == len(set(found)) == 6
