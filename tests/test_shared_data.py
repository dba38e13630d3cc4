"""Real data and weights, which are not in the repository: read where a folder beside it has them."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.data import load_dataset
from tests.backbones.conftest import random_images

DATA = Path(os.environ.get("FEDSTATS_SHARED", Path(__file__).parents[2] / "shared")) / "data"


def shared(path: str) -> Path:
    if not (DATA / path).exists():
        pytest.skip(f"no {DATA / path}: FEDSTATS_SHARED names the folder that has data/")
    return DATA / path


@pytest.mark.parametrize(
    ("name", "file", "feature_dim"),
    [
        ("squeezenet1_1", "squeezenet1_1_imagenet.pth", 512),  # a full classifier
        ("mobilenet_v2", "mobilenet_v2_features_imagenet.pth", 1280),  # its features only
    ],
)
def test_weights_load(name: str, file: str, feature_dim: int) -> None:
    backbone = load_backbone(name, weights=str(shared(f"weights/{file}")), batch_size=2, device="cpu")
    features = next(backbone.extract(random_images(2)))
    assert backbone.weights_source == f"file {file}"
    assert features.shape == (2, feature_dim) and features.isfinite().all() and features.std() > 0.1


def test_parquet_is_read() -> None:
    test = load_dataset(f"parquet:{shared('cifar100_25k')}", "test")
    assert test is not None and len(test) == 5000 and len(test.class_names) == 100
    np.testing.assert_array_equal(np.bincount(test.labels), [50] * 100)
    assert test.sample(4999).size == (32, 32) and set(test.columns) == {"coarse_label", "filename"}
    row_of_class = np.flatnonzero(test.labels == test.class_names.index("whale"))[0]
    assert test.columns["coarse_label"][row_of_class] == "aquatic_mammals"
