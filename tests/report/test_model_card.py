"""The card beside the heads: what it says is what the heads and the results say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from fedstats_app.heads import LinearHead
from fedstats_app.report import model_card as module
from fedstats_app.report.head_file import HEAD_FORMAT
from fedstats_app.report.model_card import write_model_card
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.run_record import RunRecord
from fedstats_app.training.trainers import TRAINERS
from tests.support.trainings import make_training

CLASSES = ["red", "green", "a|b`c\nd"]
HEAD = LinearHead(torch.ones(3, 4, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))


def metadata(method: str, **changes: str) -> dict[str, str]:
    return {
        "method": method,
        "regulariser": "lambda 12 (auto)",
        "backbone": "efficientnet_lite0",
        "input-size": "64",
        "class-names": json.dumps(CLASSES),
        "num-examples": "8000",
        "num-clients": "20",
        "dataset": "hub:somebody/flowers: and more",
        "seed": "3",
        "versions": json.dumps({"torch": "2.6.0", "ray": "not installed"}),
        **changes,
    }


def results(**changes: Any) -> dict[str, Any]:
    calibration = {"temperature": 0.125, "nll_before": 1.7, "nll_after": 0.6, "ece_before": 0.62, "ece_after": 0.03}
    calibration["fitted_on"] = "test samples of the server"
    scores = {"accuracy": 0.8, "macro_accuracy": 0.7, "wire_bytes": 12_345_678}
    return {
        "methods": {
            "fed3r": {**scores, "calibration": {**calibration, "num_examples": 2000}},
            "fedncm": {**scores, "accuracy": 0.75, "calibration": None},
        },
        "num_clients_asked": 22,
        "num_clients_merged": 20,
        "num_unreadable": 7,
        "evaluated_on": "server",
        "num_test_examples": 2000,
        **changes,
    }


def model_card(heads: dict[str, dict[str, str]], results: dict[str, Any]) -> str:
    return module.model_card(RunRecord("a-run", {}, results=results, heads=heads))


def front_matter(card: str) -> Any:
    _, matter, _ = card.split("---\n", 2)
    return yaml.safe_load(matter)


def section(card: str, title: str) -> str:
    return card.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


@pytest.fixture
def card() -> str:
    return model_card({"fed3r": metadata("fed3r"), "fedncm": metadata("fedncm")}, results())


def test_front_matter_is_yaml_with_what_the_hub_looks_for(card: str) -> None:
    matter = front_matter(card)
    assert matter["pipeline_tag"] == "image-classification" and matter["library_name"] == "fedstats-app"
    assert matter["datasets"] == ["somebody/flowers: and more"]
    metrics = {entry["name"]: entry["results"][0]["metrics"][0] for entry in matter["model-index"]}
    assert metrics == {"fed3r": {"type": "accuracy", "value": 0.8}, "fedncm": {"type": "accuracy", "value": 0.75}}


def test_numbers_are_those_of_the_run(card: str) -> None:
    assert "8000 labelled images for training, of 20 sites; 22 were asked. 7 more could not" in section(card, "Data")
    assert "| `fed3r` | Fed3R | 80.00 % | - | 70.00 % | - | - | 617.3 KB | 12.3 MB | lambda 12 (auto) |" in card
    assert "Classes: red, green, a b c d." in card
    assert "Papers: Fed3R, Fani et al. 2024; FedNCM, Legate et al. 2023." in section(card, "Training")
    assert "torch 2.6.0" in section(card, "Training") and "ray" not in section(card, "Training")
    assert "On 2000 test images of the server." in section(card, "Evaluation")
    assert "| `fedncm` | FedNCM | 75.00 % | - | 70.00 % | - | - |" in section(card, "Evaluation")
    assert "| `fed3r` | 0.125 | 2000 test samples of the server | 1.700 -> 0.600 | 0.620 -> 0.030 |" in section(
        card, "Calibration"
    )
    assert "| `fedncm` | not calibrated | - | - | - |" in section(card, "Calibration")


def test_a_trained_head_says_what_its_training_sent_and_nothing_else() -> None:
    for name, trainer in TRAINERS.items():
        head = f"fedncm-{name}"
        card = model_card(
            {head: metadata(head)}, results(training={head: make_training("fedncm", [0.7], stage=name).to_json()})
        )
        (line,) = (line for line in section(card, "Privacy").splitlines() if line.startswith("- `"))
        assert line == f"- `{head}`: besides the statistics of its start, sites sent {trainer.sent}."
        assert ("trained weights" in line) is trainer.by_gradient
    unknown = model_card({"fedncm-x": metadata("fedncm-x")}, results(training={"fedncm-x": {"accuracy": 0.9}}))
    assert "sites sent what `disclosure.jsonl` lists." in section(unknown, "Privacy")


def test_privacy_names_what_was_sent(card: str) -> None:
    privacy = section(card, "Privacy")
    sent = {line.split("`")[1]: line for line in privacy.splitlines() if line.startswith("- `")}
    assert "Gram matrix" in sent["fed3r"] and "Gram matrix" not in sent["fedncm"]
    assert "Evaluation:" not in privacy
    kept = model_card({"fedcof": metadata("fedcof")}, results(evaluated_on="clients"))
    assert "Evaluation: every site sent" in section(kept, "Privacy")
    assert "2000 images that sites kept for it" in section(kept, "Evaluation")


def test_it_is_written_from_the_folder(tmp_path: Path) -> None:
    run = RunFolder.create(str(tmp_path), 1)
    run.write_status("running")
    with pytest.raises(FileNotFoundError, match=r"needs results\.json and heads, found 0 heads"):
        write_model_card(run.path)
    run.save_head("fed3r", HEAD, metadata("fed3r"))
    run.write_results(results())
    path = write_model_card(run.path)
    assert path == run.path / "heads" / "README.md"
    assert path.read_text() == model_card({"fed3r": {**metadata("fed3r"), "format": HEAD_FORMAT}}, results())


def test_a_class_name_is_no_markdown() -> None:
    """A node chooses its classes' names, and the card is meant to be shown on a hub's page."""
    names = ["[x](javascript:alert(1))", "<img src=x onerror=alert(1)>", "**b**_i_", "c"]
    scores = {f"per_class_{one}": [0.5] * 4 for one in ("accuracy", "specificity", "f1", "auroc")}
    made = {"fedncm": {"accuracy": 0.5, "calibration": None, "wire_bytes": 1, **scores}}
    card = model_card({"fedncm": metadata("fedncm", **{"class-names": json.dumps(names)})}, results(methods=made))
    assert card.count(r"\[x\](javascript:alert(1))") == card.count(r"\<img src=x onerror=alert(1)\>") == 2
    assert r"\*\*b\*\*\_i\_" in card and "[x]" not in card and "<img" not in card.replace(r"\<img", "")
