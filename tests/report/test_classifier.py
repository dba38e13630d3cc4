from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedstats_app
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.weights import WeightsError
from fedstats_app.cli import main
from fedstats_app.heads import LinearHead, solve_ncm
from fedstats_app.report.classifier import Classifier
from fedstats_app.report.head_file import read_head
from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.statistics import FeatureStatistics
from tests.support.heads import head_metadata
from tests.support.simulation import simulate

_NAMES = ["red", "green", "blue", "never seen"]
_COLOURS = [(230, 20, 20), (20, 200, 30), (25, 30, 220)]


def _images(per_class: int, seed: int) -> tuple[list[Image.Image], list[str]]:
    """Noisy pictures of one colour each."""
    random = np.random.default_rng(seed)
    images, names = [], []
    for _ in range(per_class):
        for name, colour in zip(_NAMES, _COLOURS, strict=False):
            noisy = np.clip(np.array(colour) + random.normal(0, 25, (40, 30, 3)), 0, 255)
            images.append(Image.fromarray(noisy.astype(np.uint8)))
            names.append(name)
    return images, names


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("random:tiny", input_size=16, device="cpu")


def _head(backbone: Backbone) -> LinearHead:
    images, names = _images(10, seed=0)
    features = torch.cat(list(backbone.extract(images)))
    labels = torch.tensor([_NAMES.index(name) for name in names])
    return solve_ncm(FeatureStatistics.from_features(features, labels, len(_NAMES)))


def _loaded(run: RunFolder, backbone: Backbone, /, *, without: str = "", **changes: str) -> Classifier:
    """Save a head of FedNCM, with metadata changed or left out, and load it again."""
    metadata = head_metadata(backbone, _NAMES, **changes)
    metadata.pop(without, None)
    run.save_head("fedncm", _head(backbone), metadata)
    return fedstats_app.load(run.path, "fedncm", device="cpu")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(str(tmp_path), 1)


@pytest.mark.parametrize("feature_map", ["none", "relu:64"])
def test_a_loaded_classifier_knows_what_the_run_knew(run: RunFolder, feature_map: str, tmp_path: Path) -> None:
    backbone = load_backbone("random:tiny", input_size=16, device="cpu", feature_map=feature_map)
    classifier = _loaded(run, backbone)
    images, names = _images(7, seed=1)  # more than a batch
    path = tmp_path / "image.png"
    images[2].save(path)

    assert classifier.predict(image for image in images) == names
    assert classifier.predict([]) == [] and classifier.scores([]).shape == (0, 4)
    assert classifier.predict(path) == classifier.predict(str(path)) == classifier.predict(images[2]) == names[2]
    scores = classifier.scores([images[0], path])
    expected = _head(backbone).logits(torch.cat(list(backbone.extract([images[0], images[2]]))))
    assert scores.dtype == torch.float64 and torch.isneginf(scores[:, 3]).all()
    torch.testing.assert_close(scores[:, :3], expected[:, :3], rtol=1e-5, atol=1e-6)


def test_on_a_cpu_a_picture_costs_one_and_many_come_in_batches(
    run: RunFolder, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, found = Backbone._compute, list[int]()
    monkeypatch.setattr(Backbone, "_compute", lambda own, batch: found.append(len(batch)) or compute(own, batch))
    classifier, (images, names) = _loaded(run, backbone), _images(1, seed=1)
    for name, image in zip(names, images, strict=True):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        image.save(tmp_path / "pictures" / name / "0.png")
    found.clear()
    assert classifier.predict(images[0]) == names[0] and found == [1]
    head, pictures = ("--method", "fedncm"), str(tmp_path / "pictures")
    for words, sizes in {
        ("predict", str(run.path), *head, pictures): [1, 1, 1],
        ("evaluate", str(run.path), *head, pictures): [4],
        ("evaluate", str(run.path), *head, "--batch-size", "3", pictures): [3],
    }.items():
        found.clear()
        main([*words])
        assert found == sizes


def test_the_most_accurate_is_loaded(
    run: RunFolder, backbone: Backbone, make_result: Callable[..., MethodResult]
) -> None:
    for method in ("fedncm", "fed3r", "fedcgs"):
        run.save_head(method, _head(backbone), head_metadata(backbone, _NAMES))
    results = [make_result("fedncm", 0.7), make_result("fed3r", 0.9), make_result("fedcgs", None)]
    run.write_results({"methods": {result.method: result.to_json() for result in results}})
    assert fedstats_app.load(str(run.path), device="cpu").method == "fed3r"
    run.write_results({"methods": {"fedcgs": make_result("fedcgs", None).to_json()}})
    with pytest.raises(ValueError, match=r"no method with an accuracy.*heads of: fed3r, fedcgs, fedncm"):
        fedstats_app.load(run.path)


def test_a_header_has_no_folders_and_the_weights_are_found(run: RunFolder, tmp_path: Path) -> None:
    source = load_backbone("random:tiny", input_size=16, device="cpu")
    (weights := tmp_path / "private" / "mine.pth").parent.mkdir()
    torch.save(source.module.state_dict(), weights)
    tiny = load_backbone("tiny", weights=str(weights), input_size=16, device="cpu")
    metadata = head_metadata(tiny, _NAMES, backbone_weights=str(weights), dataset=f"folder:{tmp_path}/flowers")
    path = run.save_head("fedncm", _head(tiny), metadata)
    assert str(tmp_path).encode() not in path.read_bytes() and read_head(path)[1]["dataset"] == "folder:flowers"
    with pytest.raises(WeightsError, match=r"mine\.pth"):
        fedstats_app.load(run.path, "fedncm", device="cpu")
    run.write_config({"run_config": {"backbone": "tiny", "backbone-weights": str(weights)}})
    images, names = _images(1, seed=4)
    assert fedstats_app.load(run.path, "fedncm", device="cpu").predict(images) == names


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_names": '["red", "green"]'}, "has 4 classes, but there are 2 class names"),
        ({"without": "feature-map"}, "metadata must have 'feature-map'"),
        ({"class_names": '"red"'}, "class-names must be a JSON list of strings, got 'red'"),
        ({"feature_map": "relu:64"}, "but the one loaded here"),
        ({"temperature": "nan"}, "head 'fedncm': temperature must be"),
        ({"input_size": str(10**30)}, "input_size must be 1 to 4096 pixels"),
        ({"input_size": "null"}, "a head's input-size must be a number, got 'null'"),
        ({"feature_map": "null"}, "must be none, unit, relu:D"),
        ({"class_names": "[" * 100_000}, "class-names must be a JSON list"),
    ],
)
def test_metadata_that_do_not_fit(run: RunFolder, backbone: Backbone, changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _loaded(run, backbone, **changes)


def test_what_is_no_image_is_named(run: RunFolder, backbone: Backbone, tmp_path: Path) -> None:
    classifier = Classifier(backbone, _head(backbone), _NAMES, "fedncm")
    with pytest.raises(FileNotFoundError, match=r"missing\.png"):
        classifier.predict(tmp_path / "missing.png")
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(ValueError, match=r"text\.png is not a readable image"):
        classifier.predict([tmp_path / "text.png"])
    with pytest.raises(TypeError, match="a path or a PIL image, got int"):
        classifier.predict([3])  # type: ignore[list-item]


def test_probabilities_are_the_softmax_at_the_saved_temperature(run: RunFolder, backbone: Backbone) -> None:
    classifier = _loaded(run, backbone, temperature="2.5", calibrated_on="2000 test samples of the server")
    assert (classifier.temperature, classifier.calibrated_on) == (2.5, "2000 test samples of the server")
    images, _ = _images(1, seed=5)
    probabilities = classifier.probabilities(images)
    torch.testing.assert_close(probabilities, torch.softmax(classifier.scores(images) / 2.5, dim=1))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert (probabilities[:, 3] == 0).all()
    for row, of_image, predicted in zip(
        classifier.top(images, k=2), probabilities, classifier.predict(images), strict=True
    ):
        assert row[0][0] == predicted and [value for _, value in row] == sorted(of_image.tolist(), reverse=True)[:2]
        assert all(of_image[_NAMES.index(name)] == value for name, value in row)


def test_joined_networks_come_back_from_a_run(tmp_path: Path) -> None:
    name, few = "random:tiny+random:squeezenet1_1", {"samples_per_class": 5}
    folder = simulate(tmp_path, backbone=name, method="fed3r", input_size=32, num_clients=2, partition=few)
    classifier = fedstats_app.load(folder, device="cpu")
    assert classifier.backbone.name == name and classifier.head.weight.shape == (10, 32 + 512)
    assert len(classifier.predict(_images(2, seed=1)[0])) == 6
