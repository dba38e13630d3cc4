"""Specs: which are understood, and what the others are told."""

import pytest

from fedstats_app.data import DatasetError, load_dataset


@pytest.mark.parametrize(
    "spec", ["", "mnist", "builtin:", "builtin:more", "hub:", "folder:", "parquet:", "json:/data", "csv:"]
)
def test_unknown_spec_is_told_what_is_allowed(spec: str) -> None:
    with pytest.raises(DatasetError, match=r"must be builtin, hub:<name>"):
        load_dataset(spec, "train")


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_relative_path_is_refused(kind: str) -> None:
    with pytest.raises(DatasetError, match="absolute or start with ~, got 'data/images'"):
        load_dataset(f"{kind}:data/images", "train")


def test_unknown_split_is_refused() -> None:
    with pytest.raises(DatasetError, match="'validation'"):
        load_dataset("builtin", "validation")  # type: ignore[call-overload]


@pytest.mark.parametrize("columns", [{"image_column": "img"}, {"text_column": "s"}, {"label_column": "y"}])
def test_columns_mean_nothing_to_the_builtin_sample(columns: dict[str, str]) -> None:
    with pytest.raises(DatasetError, match="image-column, text-column and label-column are for"):
        load_dataset("builtin", "train", **columns)
