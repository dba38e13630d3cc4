"""Specs: which are understood, and what the others are told."""

import pytest

from fedstats_app.data import DatasetError, load_dataset
from fedstats_app.data.paths import without_folders


@pytest.mark.parametrize(
    "spec", ["", "mnist", "builtin:", "builtin:more", "hub:", "folder:", "parquet:", "json:/data", "csv:"]
)
def test_unknown_spec_is_told_what_is_allowed(spec: str) -> None:
    with pytest.raises(DatasetError, match=r"must be builtin, hub:<name>"):
        load_dataset(spec, "train")


@pytest.mark.parametrize("columns", [{"image_column": "img"}, {"text_column": "s"}, {"label_columns": "y"}])
def test_columns_mean_nothing_to_the_builtin_sample(columns: dict[str, str]) -> None:
    with pytest.raises(DatasetError, match="columns are of hub:"):
        load_dataset("builtin", "train", **columns)


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("builtin", "builtin"),
        ("hub:ylecun/mnist", "hub:ylecun/mnist"),
        ("timm:hf-hub:owner/model", "timm:hf-hub:owner/model"),
        ("timm:local-dir:/home/ann/uni", "timm:local-dir:uni"),
        ("folder:/home/ann/patients/flowers", "folder:flowers"),
        ("folder:/home/ann/flowers/", "folder:flowers"),
        ("parquet:~/secret/data", "parquet:data"),
        ("transformers:/models/bert (train)", "transformers:bert (train)"),
        ("/home/ann/weights.pth", "weights.pth"),
        ("~/runs", "runs"),
        ("/", "/"),
        ("each node's own data", "each node's own data"),
        ("1/2 sqrt(n)", "1/2 sqrt(n)"),
        ("", ""),
    ],
)
def test_of_a_path_only_its_last_part_is_shown(spec: str, shown: str) -> None:
    assert without_folders(spec) == shown
