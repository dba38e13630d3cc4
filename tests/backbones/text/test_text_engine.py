"""Language models by OpenVINO: one export for texts of every length."""

from pathlib import Path

import pytest
import torch

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.engine import BOUND
from fedstats_app.backbones.registry import load_backbone
from tests.backbones.conftest import features

pytest.importorskip("openvino", reason="the extra `fast` is not installed")
pytest.importorskip("transformers", reason="the extra `text` is not installed")
TEXTS = ["", "short", *("a text of many words " * number for number in (1, 4, 9, 40)), "short"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


def tiny(engine: str, cache: Path, template: str = "") -> Backbone:
    return load_backbone(
        "random:tiny-text", device="cpu", engine=engine, engine_cache=cache, template=template, batch_size=4
    )


@pytest.mark.parametrize("template", ["", "{text} It was {mask}."])
def test_features_are_those_of_torch_and_the_same_bits_whatever_the_grouping(cache: Path, template: str) -> None:
    usual, fast = tiny("torch", cache, template), tiny("openvino", cache, template)
    assert fast.engine == "openvino" and fast.fingerprint == usual.fingerprint
    made, expected = features(fast, TEXTS), features(usual, TEXTS)
    error = torch.linalg.vector_norm(made - expected, dim=1) / torch.linalg.vector_norm(expected, dim=1)
    assert float(error.max()) <= BOUND and torch.equal(made.flip(0), features(fast, TEXTS[::-1]))
    assert torch.equal(made, torch.cat([features(fast, [text]) for text in TEXTS]))
    assert torch.equal(made, features(tiny("openvino", cache, template), TEXTS))
