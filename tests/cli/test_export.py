"""`fedstats export`: a file that predicts as the classifier does, or none."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from huggingface_hub import ModelCard
from PIL import Image

import fedstats_app
from fedstats_app.base.files import to_json
from fedstats_app.cli import export, main
from fedstats_app.report.classifier import Classifier
from fedstats_app.report.export import onnx_file
from fedstats_app.report.export.onnx_file import OnnxModel, to_onnx
from fedstats_app.report.head_file import head_to_bytes, read_head

MADE: dict[bytes, OnnxModel] = {}
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def one_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export takes seconds: of the same head there is one for all tests."""

    def once(classifier: Classifier) -> OnnxModel:
        key = classifier.head.weight.numpy().tobytes()
        if key not in MADE:
            MADE[key] = to_onnx(classifier)
        return MADE[key]

    monkeypatch.setattr(export, "to_onnx", once)


@pytest.fixture
def exported(run_folder: Path, tmp_path: Path, capsys: Capture) -> dict[str, Any]:
    path = tmp_path / "colours.onnx"
    assert main(["export", str(run_folder), "--onnx", str(path), "--json"]) == 0
    printed = capsys.readouterr()
    document: dict[str, Any] = json.loads(printed.out)
    # A busy machine is told how far the command is.
    assert all(" so far" in line for line in printed.err.splitlines()) and document["onnx"] == str(path)
    return document


def test_the_file_predicts_as_the_classifier_does(exported: dict[str, Any], run_folder: Path, pictures: Path) -> None:
    path = Path(exported["onnx"])
    content = path.read_bytes()  # which does not tell where it was made
    assert b"site-packages" not in content and str(Path(fedstats_app.__file__).parent).encode() not in content
    session = onnxruntime.InferenceSession(path)
    header = session.get_modelmeta().custom_metadata_map
    classifier = fedstats_app.load(run_folder)
    assert json.loads(header["class-names"]) == classifier.class_names == ["blue", "green", "red"]
    assert header["calibrated-on"] == "30 test samples of the server"
    assert float(header["temperature"]) == classifier.temperature != 1.0
    assert json.loads(header["preprocessing"])["feed"] == exported["feed"]
    images = [Image.open(one) for one in sorted(pictures.rglob("*.png"))]
    for size in ((12, 12), (50, 31), (9, 70)):
        resized = [image.resize(size) for image in images]
        [made] = session.run(None, {"images": np.stack([np.asarray(image) for image in resized])})
        assert made.dtype == np.float32
        np.testing.assert_allclose(made, classifier.probabilities(resized).numpy(), atol=1e-5, rtol=0)
    assert (exported["num_examples"], exported["num_same"]) == (32, 32)
    assert exported["max_difference"] < 1e-5 and exported["bytes"] == path.stat().st_size


def test_a_file_that_differs_is_not_written(run_folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "TOLERANCE", 0.0)
    assert main(["export", str(run_folder), "--onnx"]) == 2
    assert "not written: probabilities by ONNX Runtime and by torch differ by up to " in capsys.readouterr().err
    assert not (run_folder / "export").exists()


def test_what_is_missing_is_one_line(run_folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["export", str(run_folder)]) == 2
    assert capsys.readouterr().err == "fedstats export: say what to write: --onnx, --hub or both\n"
    monkeypatch.setattr(export, "to_onnx", to_onnx)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "onnxscript" else found(name, *of)
    )
    assert main(["export", str(run_folder), "--onnx"]) == 2
    message = "fedstats export: ONNX needs onnxscript: pip install 'fedstats-app[export]'\n"
    assert capsys.readouterr().err == message


def test_a_folder_for_the_hub_is_whole(run_folder: Path, pictures: Path, tmp_path: Path, capsys: Capture) -> None:
    folder, head = tmp_path / "hub", run_folder / "heads" / "fedncm.safetensors"
    tensors, metadata = read_head(head)
    private = {"dataset": f"folder:{tmp_path}/flowers", "backbone-licence": "unknown"}
    head.write_bytes(head_to_bytes(tensors, {**metadata, **private}))
    (run_folder / "results.json").write_text(
        to_json({"methods": {"fedncm": {"accuracy": 0.9}}, "num_test_examples": 30, "refused_nodes": ["north"]})
    )
    words = ["export", str(run_folder), "--hub", str(folder), "--licence", "apache-2.0"]
    assert main(words) == 0 and [line for line in capsys.readouterr().out.splitlines() if line.startswith(str(folder))]
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert set(files) == {"README.md", "heads/fedncm.safetensors", "preprocessor_config.json"}
    card = ModelCard(files["README.md"].read_text(), ignore_metadata_errors=False)
    assert (card.data.license, card.data.library_name, card.data.model_name) == ("apache-2.0", "fedstats-app", "fedncm")
    assert card.data.pipeline_tag == "image-classification" and "federated-learning" in card.data.tags
    [result] = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_type) == ("accuracy", 0.9, "folder:flowers")
    assert "Licence of the network's weights, which the head needs: unknown." in card.content
    everything = b"".join(path.read_bytes() for path in files.values())
    assert str(tmp_path).encode() not in everything and b"north" not in everything
    paths = sorted(pictures.rglob("*.png"))
    assert fedstats_app.load(folder).top(paths) == fedstats_app.load(run_folder).top(paths) and main(words) == 2
    assert "hub must be an empty folder" in capsys.readouterr().err
