"""OpenVINO in the place of torch: the same features within a bound, the same bits whoever stands beside them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedstats_app.backbones import openvino_engine
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.engine import BOUND, SMALL_NETWORK, EngineError, chosen_engine
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.data import load_dataset
from tests.backbones.conftest import features, random_images

openvino = pytest.importorskip("openvino", reason="the extra `fast` is not installed")
IMAGES = random_images(11)
WAY: dict[str, Any] = {"device": "cpu", "autocast": "none", "num_weights": 10**6}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


def lite0(cache: Path | None, engine: str, batch_size: int = 4) -> Backbone:
    options = {"device": "cpu", "engine": engine, "engine_cache": cache}
    return load_backbone("efficientnet_lite0", input_size=32, batch_size=batch_size, **options)


@pytest.fixture(scope="module")
def fast(cache: Path) -> Backbone:
    return lite0(cache, "openvino")


def largest_error(made: Tensor, expected: Tensor) -> float:
    return float((torch.linalg.vector_norm(made - expected, dim=1) / torch.linalg.vector_norm(expected, dim=1)).max())


def test_features_are_those_of_torch_within_the_bound(fast: Backbone) -> None:
    usual = lite0(None, "torch")
    assert fast.engine == "openvino" and usual.engine == "torch"
    assert fast.fingerprint == usual.fingerprint, "float32 engines mix"
    made = features(fast, IMAGES)
    assert made.dtype == torch.float32 and made.shape == (11, 1280)
    assert 0.0 < largest_error(made, features(usual, IMAGES)) <= BOUND


def test_features_are_the_same_bits_whatever_the_grouping_and_the_threads(fast: Backbone, cache: Path) -> None:
    together = features(fast, IMAGES)
    assert torch.equal(together, torch.cat([features(fast, [image]) for image in IMAGES]))
    assert torch.equal(together.flip(0), features(fast, IMAGES[::-1]))
    larger = lite0(cache, "openvino", batch_size=7)
    assert [len(block) for block in larger.extract(IMAGES)] == [7, 4]
    assert torch.equal(together, features(larger, IMAGES))
    torch.set_num_threads(2)
    assert torch.equal(together, features(lite0(cache, "openvino"), IMAGES))


def test_nothing_is_compiled_where_every_feature_is_known(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: Any, **__: Any) -> Any:
        raise AssertionError("compiled")

    backbone = lite0(cache, "openvino")
    assert backbone.engine == "openvino"
    monkeypatch.setattr(openvino_engine, "_compiled", compiled)
    assert list(backbone.extract([])) == []
    with pytest.raises(AssertionError, match="compiled"):
        list(backbone.extract(IMAGES))


def test_bfloat16_is_another_fingerprint(fast: Backbone, cache: Path) -> None:
    half = lite0(cache, "openvino-bf16")
    assert half.engine == "openvino-bf16" and half.fingerprint != fast.fingerprint
    assert half.fingerprint == lite0(cache, "openvino-bf16").fingerprint
    assert "in bfloat16" in half.engine_in_words and "in float32" in fast.engine_in_words
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        with pytest.raises(EngineError, match="this processor does not compute in bfloat16"):
            features(half, IMAGES)
        return
    made = features(half, IMAGES)
    assert BOUND < largest_error(made, features(fast, IMAGES)) < 0.25  # noise at 32 pixels is hard
    assert torch.equal(made, torch.cat([features(half, [image]) for image in IMAGES]))


def test_a_network_is_exported_once_or_where_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    export = openvino_engine.OpenVINOEngine._exported

    def counted(engine: openvino_engine.OpenVINOEngine) -> tuple[bytes, bytes]:
        made.append(engine)
        return export(engine)

    monkeypatch.setattr(openvino_engine.OpenVINOEngine, "_exported", counted)

    def load() -> Backbone:
        return load_backbone("random:tiny", engine="openvino", engine_cache=tmp_path, device="cpu")

    first = features(load(), IMAGES)
    assert torch.equal(features(load(), IMAGES), first) and len(made) == 1
    [file] = (tmp_path / "engines").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert torch.equal(features(load(), IMAGES), first) and len(made) == 2
    blocked = tmp_path / "blocked"
    blocked.write_text("no folder")
    unkept = load_backbone("random:tiny", engine="openvino", engine_cache=blocked, device="cpu")
    assert torch.equal(features(unkept, IMAGES), first), "a disk that cannot be written costs time and not the run"


class Unusual(nn.Module):
    """Another network after its first image: no tracing can know."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.unused = nn.Parameter(torch.ones(SMALL_NETWORK))

    def forward(self, images: Tensor) -> Tensor:
        mean = images.mean((2, 3)) * self.scale
        return mean * (2.0 if float(images.sum()) > 0 else 1.0) + len(images)


def unusual(cache: Path, engine: str) -> Backbone:
    transform = ImageTransform(8, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    return Backbone(
        "unusual", Unusual(), transform, weights_source="here", device="cpu", engine=engine, engine_cache=cache
    )


def test_without_an_export_torch_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match=r"engine openvino: OpenVINO's features differ .*; use engine torch"):
        features(unusual(tmp_path, "openvino"), IMAGES)
    monkeypatch.setattr(openvino_engine.OpenVINOEngine, "_exported", pytest.fail)  # it is remembered
    backbone = unusual(tmp_path, "auto")
    assert backbone.engine == "torch" and "engine torch: OpenVINO's features differ" in caplog.text
    assert backbone.engine_in_words.startswith(f"torch {torch.__version__} (not OpenVINO: OpenVINO's features differ")
    assert torch.equal(features(backbone, IMAGES), features(unusual(tmp_path, "torch"), IMAGES))


def test_the_engine_is_part_of_the_feature_caches_key(cache: Path, tmp_path: Path) -> None:
    sample = load_dataset("builtin", "train")
    indices = np.arange(5)

    def read(engine: str) -> Tensor:
        return torch.cat([block for block, _ in FeatureReader(lite0(cache, engine), tmp_path).blocks(sample, indices)])

    first = read("torch")
    assert torch.equal(read("torch"), first) and not torch.equal(read("openvino"), first)
    assert len(list((tmp_path / "features").iterdir())) == 2


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ({}, ""),
        ({"device": "cuda"}, "it computes on the CPU, the device is cuda"),
        ({"autocast": "bf16"}, "autocast bf16 is of torch"),
    ],
)
def test_auto_takes_openvino_where_it_computes_the_same(way: dict[str, Any], why: str) -> None:
    way = {**WAY, **way}
    if not why:
        assert chosen_engine("auto", **way)[0] == chosen_engine("openvino", **way)[0] == "openvino"
        return
    assert chosen_engine("auto", **way) == ("torch", f"not OpenVINO: {why}")
    with pytest.raises(ValueError, match=f"{why}; use engine auto or torch"):
        chosen_engine("openvino", **way)


def test_without_openvino_auto_is_torch_and_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert chosen_engine("auto", **WAY) == ("torch", "not OpenVINO: it is not installed")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fedstats-app\[fast\]'"):
        chosen_engine("openvino", **WAY)
    with pytest.raises(ValueError, match=r"engine must be one of auto, torch, openvino, .*; got 'tvm'"):
        chosen_engine("tvm", **WAY)
