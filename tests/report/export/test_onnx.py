"""Every kind of classifier as an ONNX file."""

import dataclasses
import json

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.joined import JoinedBackbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.heads import LinearHead
from fedstats_app.report.classifier import Classifier
from fedstats_app.report.export.onnx_file import ExportError, OnnxModel, compare, to_onnx
from fedstats_app.report.head_file import with_module
from tests.support.sentences import BAD, GOOD

NAMES = ["a", "b", "c", "d"]
ABSENT = 2


def classifier_of(backbone: Backbone) -> Classifier:
    """Return one with a random head whose third class no client had."""
    drawn = torch.Generator().manual_seed(1)
    weight = torch.randn(len(NAMES), backbone.feature_dim, generator=drawn, dtype=torch.float64)
    present = torch.arange(len(NAMES)) != ABSENT
    bias = torch.randn(len(NAMES), generator=drawn, dtype=torch.float64).masked_fill(~present, -torch.inf)
    head = LinearHead(weight.masked_fill(~present[:, None], 0.0), bias, present)
    return Classifier(backbone, head, NAMES, "fedncm", temperature=0.7)


def images(number: int = 6) -> list[Image.Image]:
    rng = np.random.default_rng(3)
    sizes = [(20, 20), (16, 16), (40, 90), (90, 40), (1, 1), (20, 20)]
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes[:number]]


def resized_by_pillow(backbone: Backbone) -> Backbone:
    """Return the same network after a filter that is left out of the file: resizing is most of what an export takes."""
    assert isinstance(backbone.transform, ImageTransform)
    transform = dataclasses.replace(backbone.transform, interpolation="lanczos")
    return Backbone(
        backbone.name,
        backbone.module,
        transform,
        weights_source="drawn",
        device="cpu",
        feature_map=backbone.feature_map,
    )


def run(model: OnnxModel, **inputs: np.ndarray) -> np.ndarray:
    [made] = onnxruntime.InferenceSession(model.content).run(None, inputs)
    probabilities: np.ndarray = made
    return probabilities


# An export takes seconds.
@pytest.mark.extended
@pytest.mark.parametrize("feature_map", ["fourier:24:3.0"])
def test_feature_maps_absent_classes_and_a_backbone_that_training_changed(feature_map: str) -> None:
    base, other = (load_backbone("random:tiny", input_size=16, device="cpu", feature_map=feature_map) for _ in range(2))
    with torch.no_grad():
        for parameter in other.module.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    tuned = with_module(base, other.module, "tuned")
    assert tuned.fingerprint != base.fingerprint
    classifier = classifier_of(resized_by_pillow(tuned))
    model = to_onnx(classifier)
    agreement = compare(classifier, model, images())
    assert (agreement.num_examples, agreement.num_same) == (6, 6) and agreement.max_difference < 1e-5
    made = run(model, images=np.asarray(images()[1])[None])
    assert made[0, ABSENT] == 0.0 and made.sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.extended
def test_group_norm_another_memory_layout_and_features_to_a_power() -> None:
    backbone = load_backbone(
        "random:tiny", input_size=16, device="cpu", norm="group", channels_last=True, feature_power=0.5
    )
    classifier = classifier_of(backbone)
    model = to_onnx(classifier)
    assert compare(classifier, model, images()).max_difference < 1e-5
    classifier.temperature *= 1.01  # what differs is seen
    agreement = compare(classifier, model, images())
    assert not agreement.is_close and agreement.max_difference > 1e-4
    assert not compare(classifier, model, []).is_close


@pytest.mark.extended
def test_a_filter_that_cannot_be_expressed_is_left_to_the_user_who_is_told() -> None:
    classifier = classifier_of(resized_by_pillow(load_backbone("random:tiny", input_size=16, device="cpu")))
    model = to_onnx(classifier)
    assert model.side == 16 and "resized to 16 x 16 pixels by Pillow's lanczos" in model.preprocessing["feed"]
    assert model.preprocessing["resize-inside"] is False and compare(classifier, model, images()).max_difference < 1e-5
    with pytest.raises(Exception, match="invalid dimensions"):
        run(model, images=np.asarray(images()[0])[None])


@pytest.mark.extended
def test_joined_networks_resize_and_normalise_each_for_itself() -> None:
    parts = [load_backbone("random:tiny", input_size=16), load_backbone("random:tiny", input_size=20, mean=(0.1,) * 3)]
    classifier = classifier_of(JoinedBackbone(parts, "relu:24"))
    model = to_onnx(classifier)
    assert "16 x 16 pixels by Pillow's bilinear and 20 x 20 pixels" in model.preprocessing["feed"]
    assert compare(classifier, model, images()).max_difference < 1e-5


@pytest.mark.parametrize(
    ("kind", "match"), [("images", "joined networks need their resize"), ("texts", "one tokenizer")]
)
def test_what_cannot_be_fed_to_joined_networks_is_said(kind: str, match: str) -> None:
    part = load_backbone("random:tiny-text" if kind == "texts" else "random:tiny", input_size=16)
    with pytest.raises(ExportError, match=match):
        to_onnx(classifier_of(JoinedBackbone(2 * [part if kind == "texts" else resized_by_pillow(part)])))


@pytest.mark.extended
def test_any_number_of_texts_of_any_length_go_through_the_tokenizer_beside_the_file() -> None:
    classifier = classifier_of(load_backbone("random:tiny-text", input_size=64, device="cpu", batch_size=2))
    model, texts = to_onnx(classifier), ["", BAD[0], f"{GOOD[1]}, {BAD[3]}, {BAD[2]}", f"{GOOD[0]} " * 40]
    assert model.tokenizer is not None and json.loads(model.tokenizer)["truncation"]["max_length"] == 64
    agreement = compare(classifier, model, texts)
    assert (agreement.num_examples, agreement.num_same) == (4, 4) and agreement.max_difference < 1e-4


def test_a_prompt_is_refused() -> None:
    backbone = load_backbone("random:tiny-text", device="cpu", template="{text} it was {mask}.")
    with pytest.raises(ExportError, match="reads texts within the prompt"):
        to_onnx(classifier_of(backbone))


@pytest.mark.extended
def test_a_network_that_onnx_cannot_express_is_named() -> None:
    class Strange(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values: torch.Tensor = torch.linalg.svdvals(x.mean(dim=1))
            return values[:, :4]

    transform = ImageTransform(16, (0.5,) * 3, (0.5,) * 3)
    backbone = Backbone("strange", Strange(), transform, weights_source="none", device="cpu")
    with pytest.raises(ExportError, match="strange cannot be expressed in ONNX by torch "):
        to_onnx(classifier_of(backbone))
