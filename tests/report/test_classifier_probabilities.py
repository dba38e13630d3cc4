"""Probabilities of a loaded classifier, and its likeliest classes."""

from pathlib import Path

import pytest
import torch
from PIL import Image

import fedstats_app
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.heads import LinearHead
from fedstats_app.report.classifier import Classifier
from fedstats_app.report.run_folder import RunFolder
from tests.support.heads import head_metadata

NAMES = ["a", "b", "c", "never seen"]
BACKBONE = load_backbone("random:tiny", input_size=16, device="cpu")
HEAD = LinearHead(
    torch.randn(4, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 20,
    torch.zeros(4, dtype=torch.float64),
    torch.tensor([True, True, True, False]),
)
IMAGES = [Image.new("RGB", (20, 20), colour) for colour in ("red", "green", "blue")]


def load(root: Path, **metadata: str) -> Classifier:
    run = RunFolder.create(str(root), 1)
    run.save_head("fedncm", HEAD, head_metadata(BACKBONE, NAMES, **metadata))
    return fedstats_app.load(run.path, "fedncm", device="cpu")


def test_probabilities_are_the_softmax_at_the_saved_temperature(tmp_path: Path) -> None:
    classifier = load(tmp_path, temperature="2.5", calibrated_on="2000 test samples of the server")
    assert (classifier.temperature, classifier.calibrated_on) == (2.5, "2000 test samples of the server")
    probabilities = classifier.probabilities(IMAGES)
    torch.testing.assert_close(probabilities, torch.softmax(classifier.scores(IMAGES) / 2.5, dim=1))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert (probabilities[:, 3] == 0).all()


def test_the_likeliest_classes_come_first_and_begin_with_the_prediction(tmp_path: Path) -> None:
    classifier = load(tmp_path, temperature="1.5")
    ranked = classifier.top(IMAGES, k=2)
    assert [row[0][0] for row in ranked] == classifier.predict(IMAGES)
    probabilities = classifier.probabilities(IMAGES)
    for row, of_image in zip(ranked, probabilities, strict=True):
        assert [value for _, value in row] == sorted(of_image.tolist(), reverse=True)[:2]
        assert all(of_image[NAMES.index(name)] == value for name, value in row)


def test_one_image_gives_one_list_and_no_more_classes_than_there_are(tmp_path: Path) -> None:
    classifier = load(tmp_path)
    ranked = classifier.top(IMAGES[0], k=9)
    assert sorted(name for name, _ in ranked) == sorted(NAMES)
    assert ranked[-1] == ("never seen", 0.0)
    assert classifier.top([], k=2) == []
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        classifier.top(IMAGES, k=0)


@pytest.mark.parametrize("temperature", ["0", "-1", "inf", "nan", "warm"])
def test_a_temperature_that_is_none_is_refused(tmp_path: Path, temperature: str) -> None:
    with pytest.raises(ValueError, match="head 'fedncm': temperature must be"):
        load(tmp_path, temperature=temperature)
