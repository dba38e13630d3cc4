import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import fedstats_app
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.weights import WeightsError
from fedstats_app.heads import LinearHead
from fedstats_app.report.head_file import read_head, with_module
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.training.model import TunedModel
from tests.support.heads import head_metadata

_NAMES = ["ant", "bee", "cow"]


@pytest.fixture(scope="module")
def base() -> Backbone:
    return load_backbone("random:tiny", input_size=16, batch_size=4, device="cpu")


def _images(number: int = 6) -> list[Image.Image]:
    pixels = torch.randint(0, 256, (number, 20, 20, 3), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    return [Image.fromarray(one.numpy()) for one in pixels]


def _head(dim: int, seed: int = 0) -> LinearHead:
    generator = torch.Generator().manual_seed(seed)
    return LinearHead(torch.randn(3, dim, generator=generator).double(), torch.randn(3, generator=generator).double())


def _tuned_model(base: Backbone, head: LinearHead) -> TunedModel:
    """Move every weight of the backbone a little, as training would."""
    model = TunedModel(head, backbone=base.module, tune="full", temperature=0.5)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def _metadata(base: Backbone, **changes: str) -> dict[str, str]:
    return head_metadata(base, _NAMES, **{"method": "fedcof-full", "temperature": "0.5", **changes})


def _save(run: RunFolder, base: Backbone, model: TunedModel, **options: Any) -> Path:
    assert model.backbone is not None
    tuned = with_module(base, model.backbone, "tuned, fedcof-full")
    return run.save_head("fedcof-full", model.to_head(), _metadata(base), tuned=tuned, **options)


def _logits(base: Backbone, model: TunedModel, images: list[Image.Image]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(torch.stack([base.transform(image) for image in images]))
    return logits


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(str(tmp_path), 1)


def test_the_loaded_classifier_is_the_trained_model(run: RunFolder, base: Backbone) -> None:
    model = _tuned_model(base, _head(base.feature_dim))
    expected = _logits(base, model, _images())
    _save(run, base, model)
    classifier = fedstats_app.load(run.path, "fedcof-full", device="cpu")
    scores = classifier.scores(_images())
    torch.testing.assert_close((scores / classifier.temperature).float(), expected, rtol=1e-5, atol=1e-6)
    probabilities = torch.softmax(expected.double(), dim=1)
    torch.testing.assert_close(classifier.probabilities(_images()), probabilities, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        features, head = torch.cat(list(base.extract(_images()))), model.to_head()
        untuned = LinearHead(head.weight, head.bias).logits(features)
    assert (scores - untuned).abs().max() > 0.01  # else nothing was tuned


def test_a_network_whose_batchnorm_was_replaced_is_built_again(run: RunFolder) -> None:
    start = load_backbone("random:efficientnet_lite0", input_size=32, batch_size=4, device="cpu", norm="group")
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in start.module.modules())
    model = _tuned_model(start, _head(start.feature_dim))
    expected = _logits(start, model, _images(2))
    assert read_head(_save(run, start, model, normalisation="groupnorm"))[1]["batch-norm"] == "groupnorm"
    scores = fedstats_app.load(run.path, "fedcof-full", device="cpu").scores(_images(2))
    torch.testing.assert_close((scores / 0.5).float(), expected, rtol=1e-4, atol=1e-4)


def test_a_missing_damaged_or_exchanged_backbone_is_refused(run: RunFolder, base: Backbone) -> None:
    file = _save(run, base, _tuned_model(base, _head(base.feature_dim))).with_name("fedcof-full.backbone.safetensors")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(WeightsError, match=r"fedcof-full\.backbone\.safetensors is not a readable"):
        fedstats_app.load(run.path, "fedcof-full", device="cpu")
    file.unlink()
    with pytest.raises(WeightsError, match=r"no weights file.*fedcof-full\.backbone\.safetensors"):
        fedstats_app.load(run.path, "fedcof-full", device="cpu")
    elsewhere = run.path / "kept.safetensors"
    elsewhere.write_bytes(content)
    assert fedstats_app.load(run.path, "fedcof-full", weights=elsewhere, device="cpu").predict(_images(1)[0]) in _NAMES
    other = run.path / "other.pth"
    torch.save(base.module.state_dict(), other)
    with pytest.raises(ValueError, match="Pass the right weight file"):
        fedstats_app.load(run.path, "fedcof-full", weights=other, device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tuned_backbone": "../../secret.safetensors"}, "tuned-backbone must be a file name without a folder, got"),
        ({"batch_norm": "layer"}, "batch-norm must be one of batch, groupnorm, got 'layer'"),
    ],
)
def test_metadata_that_lead_elsewhere(run: RunFolder, base: Backbone, changes: dict[str, str], message: str) -> None:
    run.save_head("fedncm", _head(base.feature_dim), _metadata(base, **changes))
    with pytest.raises(ValueError, match=message):
        fedstats_app.load(run.path, "fedncm", device="cpu")


def test_a_model_of_a_folder_reads_its_own_weights_back(run: RunFolder, tmp_path: Path) -> None:
    """Arguments and pooling are in the metadata; config.json is where the name, or who loads the head, says."""
    timm = pytest.importorskip("timm")
    folder = tmp_path / "vit"
    folder.mkdir()
    small = {"img_size": 32, "embed_dim": 24, "num_heads": 3}
    network = timm.create_model("vit_tiny_patch16_224", num_classes=0, depth=2, **small)
    torch.save(network.state_dict(), folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_224", "model_args": small}))
    name, options = f"timm:local-dir:{folder}", {"arguments": "depth=2", "pooling": "cls+mean"}
    start = load_backbone(name, weights="random", batch_size=2, device="cpu", **options)  # type: ignore[arg-type]
    tuned = with_module(start, start.module, "tuned")
    (folder / "pytorch_model.bin").unlink()  # the tuned weights are in the run folder
    names = {"backbone_arguments": "depth=2", "backbone_pooling": "cls+mean"}
    run.save_head("x", _head(start.feature_dim), _metadata(start, **names), tuned=tuned)
    expected = _head(start.feature_dim).to(dtype=torch.float64).logits(torch.cat(list(start.extract(_images(2)))))
    moved = folder.rename(tmp_path / "elsewhere")
    scores = fedstats_app.load(run.path, "x", weights=moved, device="cpu", batch_size=2).scores(_images(2))
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
