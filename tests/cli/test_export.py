"""`fedstats export`: a file that predicts as the classifier does, or none."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

import fedstats_app
from fedstats_app.cli import main
from fedstats_app.export import onnx_check

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def exported(run_folder: Path, tmp_path: Path, capsys: Capture) -> dict[str, Any]:
    path = tmp_path / "colours.onnx"
    assert main(["export", str(run_folder), "--onnx", str(path), "--json"]) == 0
    printed = capsys.readouterr()
    document: dict[str, Any] = json.loads(printed.out)
    assert printed.err == "" and document["onnx"] == str(path)
    return document


def test_the_file_predicts_as_the_classifier_does(exported: dict[str, Any], run_folder: Path, pictures: Path) -> None:
    path = Path(exported["onnx"])
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
    assert (exported["num_compared"], exported["num_same_class"]) == (32, 32)
    assert exported["max_difference"] < 1e-5 and exported["bytes"] == path.stat().st_size


def test_the_file_does_not_tell_where_it_was_made(exported: dict[str, Any]) -> None:
    content = Path(exported["onnx"]).read_bytes()
    assert b"site-packages" not in content and str(Path(fedstats_app.__file__).parent).encode() not in content


def test_it_is_compared_on_what_is_named(run_folder: Path, pictures: Path, capsys: Capture) -> None:
    (pictures / "red" / "0.png").write_bytes(b"no picture")
    assert main(["export", str(run_folder), "--onnx", "--check", str(pictures), "--method", "fedncm"]) == 1
    printed = capsys.readouterr()
    *_, compared, path = printed.out.splitlines()
    assert compared.startswith("compared with torch on 11 images: the same class for 11, probabilities within ")
    assert path.startswith(str(run_folder / "export" / "fedncm.onnx"))
    assert "fedstats export: not read: " in printed.err and "0.png" in printed.err
    written = (run_folder / "export" / "fedncm.onnx").read_bytes()
    assert main(["export", str(run_folder), "--onnx", "--check", str(pictures / "none")]) == 2
    assert "there is nothing to compare on: " in capsys.readouterr().err
    assert (run_folder / "export" / "fedncm.onnx").read_bytes() == written


def test_a_file_that_differs_is_not_written(run_folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_check, "TOLERANCE", 0.0)
    assert main(["export", str(run_folder), "--onnx"]) == 2
    assert "not written: probabilities by ONNX Runtime and by torch differ by up to " in capsys.readouterr().err
    assert not (run_folder / "export").exists()


def test_what_is_missing_is_one_line(run_folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["export", str(run_folder)]) == 2
    assert capsys.readouterr().err == "fedstats export: say what to write: --onnx\n"
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "onnxscript" else found(name, *of)
    )
    assert main(["export", str(run_folder), "--onnx"]) == 2
    message = "fedstats export: ONNX needs onnxscript: pip install 'fedstats-app[export]'\n"
    assert capsys.readouterr().err == message
