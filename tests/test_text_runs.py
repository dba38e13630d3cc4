"""Runs of the whole app on texts, without Ray: statistics, training, and using what they leave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import fedstats_app
from fedstats_app.cli import main
from fedstats_app.client.replica import replica_of
from tests.support.sentences import BAD, GOOD, text_folder
from tests.support.simulation import read_json, rounds, simulate

pytest.importorskip("transformers", reason="needs the extra `text`")


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reviews")
    text_folder(root / "train", each=20)
    text_folder(root / "test", each=10)
    return root


def run(tmp_path: Path, reviews: Path, *, nodes: list[Mapping[str, object]] | None = None, **settings: object) -> Path:
    texts = {"backbone": "random:tiny-text", "dataset": f"folder:{reviews}", "input_size": 0}
    federation = {"num_clients": 4, "partitioner": "iid", "cache_dir": str(tmp_path / "cache")}
    return simulate(tmp_path, node_configs=nodes, **{**texts, **federation, **settings})


def predicts_as_scored(classifier: fedstats_app.Classifier, reviews: Path, accuracy: float) -> None:
    """Check that a classifier is as often right as the run says, on files and on their texts alike."""
    test = sorted((reviews / "test").rglob("*.txt"))
    predicted = classifier.predict(test)
    correct = sum(name == path.parent.name for name, path in zip(predicted, test, strict=True)) / len(test)
    assert correct == pytest.approx(accuracy) and predicted == classifier.predict([path.read_text() for path in test])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, reviews: Path) -> Path:
    settings = {"method": "fedncm,fed3r", "fine_tune": "full", "start_head": "zero", "num_server_rounds": 4}
    return run(tmp_path_factory.mktemp("tuned"), reviews, **settings, learning_rate=0.05, local_epochs=3)


def test_all_methods_give_the_same_heads_however_the_texts_are_split(tmp_path: Path, reviews: Path) -> None:
    one = run(tmp_path / "one", reviews, num_clients=1, min_clients=1, wire_dtype="float64")
    many = run(tmp_path / "many", reviews, num_clients=6, wire_dtype="float64", feature_cache="off")
    scores = [read_json(folder, "results.json")["methods"] for folder in (one, many)]
    for method in ("fedncm", "fed3r", "fedcgs"):
        heads = [fedstats_app.load(folder, method).head.weight for folder in (one, many)]
        torch.testing.assert_close(heads[0], heads[1], rtol=1e-5, atol=1e-5)
        assert scores[0][method]["accuracy"] == scores[1][method]["accuracy"]
    assert scores[1]["fed3r"]["accuracy"] > 0.8  # bags of words suffice to tell these apart


def test_full_fine_tuning_moves_the_network_and_the_run_folder_predicts_with_it(tuned: Path, reviews: Path) -> None:
    scored = rounds(tuned, "zero-full")
    assert scored[-1]["loss"] < 0.95 * scored[0]["loss"]
    classifier = fedstats_app.load(tuned, "zero-full")
    predicts_as_scored(classifier, reviews, scored[-1]["accuracy"])
    assert classifier.backbone.fingerprint != fedstats_app.load(tuned, "fed3r").backbone.fingerprint


def test_predict_takes_sentences_and_text_files(tuned: Path, reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = reviews / "test" / "good" / "00.txt"
    assert main(["predict", str(tuned), str(file), "--text", BAD[0], "--text", GOOD[0], "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["path"] for one in document["predictions"]] == [str(file), BAD[0], GOOD[0]]
    expected = fedstats_app.load(tuned).top([file, BAD[0], GOOD[0]])
    for one, ranking in zip(document["predictions"], expected, strict=True):
        assert [pair["class"] for pair in one["top"]] == [name for name, _ in ranking]
        assert [pair["probability"] for pair in one["top"]] == pytest.approx([value for _, value in ranking])


def test_the_card_and_the_record_speak_of_texts(tuned: Path, tmp_path: Path) -> None:
    assert main(["export", str(tuned), "--hub", str(tmp_path / "hub")]) == 0
    card = (tmp_path / "hub" / "README.md").read_text()
    assert 'pipeline_tag: "text-classification"' in card and "# Text classifier of 2 classes" in card
    assert "40 texts of" in card and 'predict("a text")' in card
    assert "image" not in card and read_json(tuned, "config.json")["versions"]["transformers"] != "not installed"


def test_training_starts_from_label_words(tmp_path: Path, reviews: Path) -> None:
    settings = {"text_template": "{text} it was {mask}.", "label_words": "terrible,great", "start_head": "label-words"}
    folder = run(tmp_path, reviews, method="fed3r", fine_tune="probe", num_server_rounds=2, **settings)
    training = read_json(folder, "results.json")["training"]
    assert list(training) == ["label-words-probe"] and training["label-words-probe"]["start"] == "label-words"
    assert fedstats_app.load(folder, "label-words-probe").predict(GOOD[0]) in ("bad", "good")


def test_fedmezo_tunes_a_language_model_and_the_run_folder_predicts_with_it(tmp_path: Path, reviews: Path) -> None:
    replica_of.cache_clear()
    settings = {"method": "fedncm", "fine_tune": "fedmezo", "fedmezo.tune": "norm", "start_head": "random"}
    folder = run(tmp_path, reviews, **settings, num_server_rounds=4)
    scored = rounds(folder, "random-fedmezo")
    result = read_json(folder, "results.json")["training"]["random-fedmezo"]
    assert result["notes"][0].startswith("4 of 4 replicas are bit-identical at the end")
    predicts_as_scored(fedstats_app.load(folder, "random-fedmezo"), reviews, scored[-1]["accuracy"])
