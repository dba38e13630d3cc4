"""Persons through the whole app: in a simulation and on nodes, whose owners alone say whose samples are whose."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstats_app.client import site
from fedstats_app.data.clients import own_dataset
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.report.classifier import load
from tests.support.simulation import clients, read_json, simulate, site_folder

CLASSES = ("red", "green", "blue")


def persons_folder(root: Path, seed: int, persons: int, images: int, start: int = 0) -> str:
    """Make a folder of three classes in which each person has some images of each."""
    for number in range(start, start + persons):
        for name in CLASSES:
            site_folder(root / "new", (name,), seed=1000 * seed + number, images=images)
            target = root / name / f"person {number}"
            target.parent.mkdir(parents=True, exist_ok=True)
            (root / "new" / name).rename(target)
            (root / "new").rmdir()
    return str(root)


def accuracies(folder: Path) -> dict[str, Any]:
    found = read_json(folder, "results.json")["methods"]["fedncm"]
    return {key: found[key] for key in ("accuracy", "person_accuracy", "num_persons", "num_examples")}


def test_a_simulation_keeps_persons_whole_and_says_accuracy_by_person(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    persons_folder(tmp_path / "data" / "train", 0, persons=12, images=4)
    persons_folder(tmp_path / "data" / "test", 1, persons=3, images=1, start=20)
    persons_folder(tmp_path / "data" / "test", 2, persons=1, images=5, start=30)
    options = {"dataset": f"folder:{tmp_path / 'data'}", "person_column": "subfolder", "max_per_person": 6}
    folder = simulate(tmp_path, **options, num_clients=3, partitioner="iid", method="fedncm")
    said = capsys.readouterr().out
    assert "data: 72 images of 12 persons of 3 classes (blue, green, red); test split: 24 images" in said
    assert "max-per-person: 72 of 144 images are left out" in said
    assert [one["num_examples"] for one in clients(folder)] == [24, 24, 24]

    files = sorted((tmp_path / "data" / "test").rglob("*.png"))
    predicted = load(folder).predict([str(file) for file in files])
    right = np.array([name == file.parent.parent.name for name, file in zip(predicted, files, strict=True)])
    whose = np.array([file.parent.name for file in files])
    by_hand = float(np.mean([right[whose == person].mean() for person in set(whose)]))
    found = accuracies(folder)
    assert found == {
        "accuracy": pytest.approx(right.mean()),
        "person_accuracy": pytest.approx(by_hand, abs=1e-6),
        "num_persons": 4,
        "num_examples": 72,
    }
    assert "the mean over 4 persons" in (folder / "report.html").read_text()


def test_sites_of_a_simulation_hold_out_persons(tmp_path: Path) -> None:
    data = persons_folder(tmp_path / "data", 0, persons=20, images=2)
    options = {"dataset": data, "person_column": "subfolder", "holdout_fraction": 0.4, "method": "fedncm"}
    folder = simulate(tmp_path, **options, num_clients=2, partitioner="iid")
    found = accuracies(folder)
    assert found["num_examples"] == 20 * 6 * 0.6 and found["num_persons"] == 8
    folder = simulate(tmp_path, **options, num_clients=0, partitioner="natural-id")
    assert read_json(folder, "config.json")["client_names"]["0"] == "person 0"
    assert len(clients(folder)) == 20 and accuracies(folder)["accuracy"] is None


def test_a_node_counts_persons_and_no_run_chooses_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes: list[dict[str, object]] = [
        {"data-path": persons_folder(tmp_path / str(seed), seed, persons=20, images=3), "person-column": "subfolder"}
        for seed in range(2)
    ]
    few = {**nodes[1], "data-path": persons_folder(tmp_path / "few", 2, persons=4, images=9)}
    options: dict[str, Any] = {"method": "fedncm", "holdout_fraction": 0.4}
    folder = simulate(tmp_path, node_configs=[*nodes, few], **options, wait_timeout=1.0)
    assert [one["num_examples"] for one in clients(folder)][:2] == [12 * 9, 12 * 9]
    assert sum(one["num_examples"] for one in clients(folder)) == 24 * 9  # four persons are under the floor of five
    found = accuracies(folder)
    assert found["num_persons"] == 16
    assert found["person_accuracy"] * 16 == pytest.approx(round(found["person_accuracy"] * 16), abs=1e-5)

    capped = [{**node, "max-per-person": 2} for node in nodes]
    for node in capped:
        node["state-dir"] = str(tmp_path / "state" / str(node["data-path"])[-1])
    folder = simulate(tmp_path, node_configs=capped, **options, max_per_person=99)
    assert sum(one["num_examples"] for one in clients(folder)) <= 24 * 2
    assert "max-per-person: 140 of 180 images are left out" in caplog.text

    with pytest.raises(TooFewClients):
        simulate(tmp_path, node_configs=nodes, person_column="label", wait_timeout=1.0, **options)
    assert "person-column: the run asks for 'label', the node-config has 'subfolder'" in caplog.text


def test_noise_that_hides_persons_says_what_it_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = persons_folder(tmp_path / "data", 0, persons=12, images=2)
    persons_folder(tmp_path / "test", 1, persons=2, images=1)
    options: dict[str, Any] = {"dataset": data, "test_dataset": f"folder:{tmp_path / 'test'}", "method": "fedncm"}
    noise = {"secure_sums": "on", "dp_epsilon": 60.0, "dp_delta": 1e-3, "dp_unit": "person", "partitioner": "iid"}
    noise |= {"num_clients": 3}
    folder = simulate(tmp_path, **options, **noise, person_column="subfolder", dp_per_person=2)
    said = capsys.readouterr().out
    assert "for one person with at most 2 of 24: signal to noise" in said
    assert "with dp-unit = sample all 72 samples would count, at a signal to noise of" in said
    promise = read_json(folder, "results.json")["differential_privacy"]
    assert (promise["unit"], promise["per_person"], promise["num_samples"]) == ("person", 2, 24)
    assert "for one person more or less with at most 2 of 24 (declared)" in (folder / "report.html").read_text()
    with pytest.raises(ValueError, match="dp-unit: person needs person-column, got none"):
        simulate(tmp_path, **options, **noise, folder_levels="class")


def test_no_sample_is_left_out_of_its_own_person(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A head without it would still know its person: neither a simulation nor a node whose owner names persons does."""
    data = persons_folder(tmp_path / "data", 0, persons=12, images=2)
    options: dict[str, Any] = {"method": "fed3r", "holdout_fraction": 0.0}
    folder = simulate(tmp_path, dataset=data, person_column="subfolder", num_clients=2, partitioner="iid", **options)
    assert read_json(folder, "results.json")["leave_one_out"] is None and "leave-one-out" not in caplog.text
    nodes = [{"data-path": persons_folder(tmp_path / n, 1, persons=12, images=2)} for n in "ab"]
    folder = simulate(tmp_path, node_configs=[{**node, "person-column": "subfolder"} for node in nodes], **options)
    assert read_json(folder, "results.json")["leave_one_out"] is None
    assert "leave-one-out leaves a sample out of the head, not its person" in caplog.text


def test_few_new_persons_wait_however_many_images_they_bring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And new images of known persons, which a further release would tell alone."""
    nodes = [{"data-path": persons_folder(tmp_path / n, 1, persons=6, images=2)} for n in "ab"]
    nodes = [{**node, "person-column": "subfolder"} for node in nodes]
    options: dict[str, Any] = {"node_configs": nodes, "method": "fedncm", "holdout_fraction": 0.0}

    def samples() -> list[int]:
        own_dataset.cache_clear()
        site._split.cache_clear()
        return [one["num_examples"] for one in clients(simulate(tmp_path, **options))]

    assert samples() == [36, 36]
    persons_folder(tmp_path / "a", 2, persons=4, images=9, start=6)
    (tmp_path / "b" / "red" / "person 0" / "new.png").write_bytes(
        (tmp_path / "a" / "red" / "person 6" / "0.png").read_bytes()
    )
    assert samples() == [36, 36]
    assert "108 of its samples wait" in capsys.readouterr().out.replace("\n  ", " ")
    persons_folder(tmp_path / "a", 3, persons=1, images=1, start=10)
    assert samples() == [36 + 4 * 27 + 3, 36]
