"""`fedstats evaluate` on pictures of three colours."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, roc_auc_score

import fedstats_app
from fedstats_app.cli import main
from tests.cli.conftest import picture

Capture = pytest.CaptureFixture[str]


def evaluate_json(capsys: Capture, run_folder: Path, folder: Path) -> tuple[int, dict[str, object]]:
    return main(["evaluate", str(run_folder), str(folder), "--json"]), json.loads(capsys.readouterr().out)


@pytest.fixture
def mixed(pictures: Path) -> Path:
    """Pictures of which two red ones lie among the blue ones."""
    for number in range(2):
        picture("red", 50 + number).save(pictures / "blue" / f"red-{number}.png")
    return pictures


def test_json_counts_what_the_classifier_predicts(run_folder: Path, mixed: Path, capsys: Capture) -> None:
    code, document = evaluate_json(capsys, run_folder, mixed)
    paths = sorted(mixed.rglob("*.png"))
    truth, predicted = [path.parent.name for path in paths], fedstats_app.load(run_folder).predict(paths)
    assert code == 0 and document["num_examples"] == 14
    assert document["accuracy"] == pytest.approx(accuracy_score(truth, predicted)) == pytest.approx(12 / 14)
    assert document["macro_accuracy"] == pytest.approx(balanced_accuracy_score(truth, predicted))
    assert {"true": "blue", "predicted": "red", "count": 2} in document["confusion"]
    assert sum(cell["count"] for cell in document["confusion"]) == 14
    scores = fedstats_app.load(run_folder).scores(paths)
    is_blue, wrong = np.array([name == "blue" for name in truth]), [name == "blue" for name in predicted]
    assert document["class_names"][0] == "blue"
    assert {key: value[0] for key, value in document.items() if key.startswith("per_class_")} == {
        "per_class_examples": 6,
        "per_class_accuracy": pytest.approx(4 / 6),
        "per_class_accuracy_interval": [pytest.approx(0.3, abs=0.01), pytest.approx(0.9032, abs=0.01)],
        "per_class_specificity": 1.0,
        "per_class_specificity_interval": [pytest.approx(0.6756, abs=1e-4), 1.0],
        "per_class_f1": pytest.approx(f1_score(is_blue, wrong)),
        "per_class_auroc": pytest.approx(
            roc_auc_score(is_blue, (scores[:, 0] - scores[:, 1:].amax(dim=1)).numpy()), abs=0.02
        ),
    }
    assert document["macro_f1"] == pytest.approx(f1_score(truth, predicted, average="macro"))
    assert document["macro_auroc"] == pytest.approx(np.mean(document["per_class_auroc"]))
    low, high = document["accuracy_interval"]
    assert low < 12 / 14 < high and document["macro_auroc_error"] < 0.05


def test_text_has_accuracies_and_the_pairs_confused_most(run_folder: Path, mixed: Path, capsys: Capture) -> None:
    assert main(["evaluate", str(run_folder), str(mixed)]) == 0
    out = capsys.readouterr().out
    assert "accuracy 85.71 %, 95% interval 60.06 % to 95.99 %" in out
    assert "balanced accuracy 88.89 %; macro F1 " in out and "; macro AUROC 0." in out
    assert "expected calibration error 0." in out and "calibrated on 30 test samples of the server" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["blue", "66.7", "%", "30.0", "to", "90.3", "6", "100.0", "%", "80.0", "%"] in [line[:11] for line in lines]
    assert "confused most often\nblue taken for red: 2 of 6" in out
    assert max(map(len, out.splitlines()[1:])) <= 100
    shutil.rmtree(mixed / "blue")
    assert main(["evaluate", str(run_folder), str(mixed)]) == 0
    out = capsys.readouterr().out
    assert "nothing was taken for another class" in out and "no image of 1 of the head's classes: blue" in out


def test_other_classes_are_refused_unless_they_are_empty(run_folder: Path, pictures: Path, capsys: Capture) -> None:
    (pictures / "empty").mkdir()
    code, document = evaluate_json(capsys, run_folder, pictures)
    assert code == 0 and document["num_examples"] == 12
    (pictures / "red").rename(pictures / "Red ")
    (pictures / "green").rename(pictures / "yellow")
    assert main(["evaluate", str(run_folder), str(pictures)]) == 2
    errors = capsys.readouterr().err
    assert "images of 2 classes that the head does not know." in errors
    assert "only in the folder: 'Red ', 'yellow'" in errors and "only in the head:   'green', 'red'" in errors


def test_unreadable_images_are_left_out_and_named(run_folder: Path, pictures: Path, capsys: Capture) -> None:
    (pictures / "red" / "0.png").write_bytes(b"no picture")
    assert main(["evaluate", str(run_folder), str(pictures), "--json"]) == 1
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["num_examples"] == 11 and document["unreadable"][0]["path"] == "red/0.png"
    assert "fedstats evaluate: not read: red/0.png: " in printed.err
    for path in pictures.rglob("*.png"):
        path.write_bytes(b"no picture")
    assert main(["evaluate", str(run_folder), str(pictures)]) == 2
    assert "none of 12 images can be read; blue/0.png: " in capsys.readouterr().err
