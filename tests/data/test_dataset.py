"""The Dataset class: labels, names, unreadable samples, class lists."""

import io

import numpy as np
import pytest
from PIL import Image

from fedstats_app.data.dataset import Dataset, DatasetError, SampleSource, UnreadableSampleError
from tests.data.conftest import PLAIN, make_dataset


def noise_png() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(stream, format="PNG")
    return stream.getvalue()


def one_sample(content: bytes) -> Dataset:
    source = SampleSource(lambda index: Image.open(io.BytesIO(content)), lambda index: f"bytes/{index}")
    return Dataset("one", ("a",), np.zeros(1, dtype=np.int64), "0" * 64, source)


def test_sample_is_rgb_and_named() -> None:
    dataset = make_dataset(np.array([0, 1, 1]))
    assert len(dataset) == 3 and dataset.sample(2).mode == "RGB"
    assert dataset.sample(2).getpixel((0, 0)) == (2, 2, 2) and dataset.sample_name(1) == "plain/1"
    for read, index in ((dataset.sample, -1), (dataset.sample_name, 3)):
        with pytest.raises(IndexError, match=r"0\.\.2"):
            read(index)


@pytest.mark.parametrize("damage", ["truncated", "header only", "garbage", "empty", "flipped"])
def test_damaged_image_is_named_with_a_reason(damage: str) -> None:
    whole = noise_png()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    content = {
        "truncated": whole[: len(whole) // 2],
        "header only": whole[:40],
        "garbage": b"not an image at all",
        "empty": b"",
        "flipped": bytes(flipped),
    }[damage]
    assert one_sample(whole).sample(0).size == (64, 64)
    with pytest.raises(UnreadableSampleError, match="bytes/0") as caught:
        one_sample(content).sample(0)
    assert caught.value.name == "bytes/0" and caught.value.reason


@pytest.mark.parametrize(
    ("class_names", "labels", "message"),
    [
        (("a", "b"), np.array([0, -1, 1, 2]), r"2 of 4 labels.*plain/1 has -1, plain/3 has 2"),
        (("a", "b"), np.zeros((2, 1), dtype=np.int64), "one integer per sample"),
        (("a", "b"), np.array([0.0, 1.0]), "one integer per sample"),
        ((), np.zeros(0, dtype=np.int64), "distinct"),
        (("a", "a"), np.zeros(0, dtype=np.int64), "distinct"),
    ],
)
def test_labels_and_classes_are_checked(class_names: tuple[str, ...], labels: np.ndarray, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        Dataset("one", class_names, labels, "0" * 64, PLAIN)


def test_with_class_names_renumbers_by_name() -> None:
    dataset = make_dataset(np.array([0, 1, 2, 1]))
    wider = dataset.with_class_names(["class 2", "other", "class 0", "class 1"])
    assert wider.class_names == ("class 2", "other", "class 0", "class 1")
    np.testing.assert_array_equal(wider.labels, [2, 3, 0, 3])
    assert dataset.with_class_names(dataset.class_names) is dataset


def test_what_is_kept_by_index_is_not_confused_with_that_of_a_subset() -> None:
    dataset = make_dataset(np.array([0, 1, 1, 0]))
    subsets = [dataset.subset(np.array(indices)) for indices in ([0, 1], [1, 0], [0, 1, 2])]
    assert len({dataset.fingerprint, *(one.fingerprint for one in subsets)}) == 4
    assert dataset.subset(np.array([0, 1])).fingerprint == subsets[0].fingerprint
    assert all(len(one.fingerprint) == 64 for one in subsets)
