"""What a run says of the heads that were trained: as much as of those that were solved."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, log_loss, roc_auc_score

import fedstats_app
from fedstats_app.data import load_dataset
from fedstats_app.report.method_result import wilson_interval
from tests.support.simulation import nodes_of, read_json, simulate

FAST: Mapping[str, Any] = {"method": "fedncm", "num_server_rounds": 1}


@pytest.mark.parametrize("tune", ["probe", "full"])
def test_measures_of_a_trained_head_are_those_of_scikit_learn(tmp_path: Path, tune: str) -> None:
    folder = simulate(tmp_path, fine_tune=tune, num_clients=2, partitioner="iid", **FAST)
    name = f"fedncm-{tune}"
    entry = read_json(folder, "results.json")["training"][name]
    classifier = fedstats_app.load(folder, name, batch_size=64)
    test = load_dataset("builtin", "test")
    assert test is not None
    labels = np.array(test.labels)
    scores = classifier.scores([test.sample(index) for index in range(len(labels))]).double()
    predicted = scores.argmax(dim=1).numpy()
    right = int((predicted == labels).sum())
    assert entry["accuracy"] == pytest.approx(right / len(labels), abs=5e-3)
    assert entry["accuracy_interval"] == pytest.approx(wilson_interval(right, len(labels)), abs=5e-3)
    assert entry["macro_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted), abs=5e-3)
    assert entry["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"), abs=5e-3)
    assert entry["per_class_examples"] == np.bincount(labels).tolist()
    areas = []
    for c in range(10):
        others = torch.cat([scores[:, :c], scores[:, c + 1 :]], dim=1).amax(dim=1)
        areas.append(roc_auc_score(labels == c, (scores[:, c] - others).numpy()))
    assert entry["macro_auroc"] == pytest.approx(np.mean(areas), abs=entry["macro_auroc_error"] + 1e-3)
    # The temperature is the head's: predict uses it, and its probabilities are as likely as the results say.
    fitted = entry["calibration"]
    assert classifier.temperature == pytest.approx(fitted["temperature"])
    assert classifier.calibrated_on == "250 test samples of the server"
    probabilities = torch.softmax(scores / classifier.temperature, dim=1).numpy()
    assert fitted["nll_after"] == pytest.approx(log_loss(labels, probabilities), rel=1e-2)


def test_what_clients_hold_out_scores_a_trained_head_within_the_floors(tmp_path: Path) -> None:
    configs = [
        *nodes_of(tmp_path, "a", ("ant", "bee"), images=80, train=True, min_class_count=5),
        *nodes_of(tmp_path, "b", ("bee", "cow"), images=80, train=True, min_class_count=30),
    ]
    folder = simulate(tmp_path, node_configs=configs, fine_tune="probe", training={"batch_size": 32}, **FAST)
    results = read_json(folder, "results.json")
    solved, entry = results["methods"]["fedncm"], results["training"]["fedncm-probe"]
    # A node that may name no class of the few samples that it kept tells as little of a trained head.
    assert entry["per_class_examples"] == solved["per_class_examples"]
    assert entry["calibration"]["num_examples"] == solved["calibration"]["num_examples"] > 0
    assert entry["client_accuracy"].keys() == solved["client_accuracy"].keys()
    assert fedstats_app.load(folder, "fedncm-probe").calibrated_on.endswith("samples that sites kept")


def test_of_a_network_that_was_tuned_clients_tell_counts_alone(tmp_path: Path) -> None:
    configs = nodes_of(tmp_path, "ab", ("ant", "bee"), images=20, train=True)
    folder = simulate(tmp_path, node_configs=configs, fine_tune="full", learning_rate=0.001, **FAST)
    entry = read_json(folder, "results.json")["training"]["fedncm-full"]
    assert entry["accuracy"] is not None and entry["calibration"] is None and entry["macro_f1"] is None
    assert not fedstats_app.load(folder, "fedncm-full").calibrated_on


def test_a_head_that_is_worse_than_its_start_says_so_wherever_it_goes(tmp_path: Path, capsys: Any) -> None:
    worse = {"method": "fed3r", "learning_rate": 0.01, "temperature": 1.0, "num_server_rounds": 5}
    folder = simulate(tmp_path, fine_tune="probe", **worse)
    (note,) = read_json(folder, "results.json")["training"]["fed3r-probe"]["notes"]
    assert note.startswith("its accuracy, ") and "is below that of its start (" in note
    assert "chance" not in note and f"Fed3R, then probe: {note}" in capsys.readouterr().out.replace("\n  ", " ")
