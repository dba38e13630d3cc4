"""Paths as they may be shown."""

import pytest

from fedstats_app.data.paths import without_folders


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("builtin", "builtin"),
        ("hub:ylecun/mnist", "hub:ylecun/mnist"),
        ("timm:hf-hub:owner/model", "timm:hf-hub:owner/model"),
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
