"""Contact sheets give back what went in."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fedstats_app.data.builtin.contact_sheet import ContactSheet


def sheet_of(count: int, height: int, width: int, seed: int) -> ContactSheet:
    rng = np.random.default_rng(seed)
    return ContactSheet(
        images=rng.integers(0, 256, (count, height, width), dtype=np.uint8),
        labels=rng.integers(0, 10, count),
        origin_indices=rng.permutation(count),
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 50), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**31))
def test_round_trip(count: int, height: int, width: int, seed: int) -> None:
    sheet = sheet_of(count, height, width, seed)
    text = sheet.to_json()
    back = ContactSheet.from_json(text)
    np.testing.assert_array_equal(back.images, sheet.images)
    np.testing.assert_array_equal(back.labels, sheet.labels)
    np.testing.assert_array_equal(back.origin_indices, sheet.origin_indices)
    assert back.to_json() == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [0] * 5, "origin_indices": [0] * 5}, "sheet of"),
        ({"origin_indices": [0]}, "as many labels and origin indices"),
        ({"tile_width": 5}, "sheet of"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    content = json.loads(sheet_of(9, 4, 4, 0).to_json())
    with pytest.raises(ValueError, match=message):
        ContactSheet.from_json(json.dumps({**content, **change}))


def test_missing_key_is_named() -> None:
    content = json.loads(sheet_of(2, 4, 4, 0).to_json())
    del content["labels"]
    with pytest.raises(ValueError, match=r"\['labels'\]"):
        ContactSheet.from_json(json.dumps(content))


def test_images_must_be_grey_bytes() -> None:
    with pytest.raises(ValueError, match="uint8"):
        ContactSheet(np.zeros((1, 2, 2, 3), dtype=np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64))
