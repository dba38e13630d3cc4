"""Trackers: what they are told of a whole run, with the real libraries; what fails harms nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedstats_app.report import trackers as module
from fedstats_app.report.trackers import TRACKERS, Trackers
from fedstats_app.report.training_record import read_rounds
from tests.support.simulation import Killed, head_bytes, killed, read_json, simulate

SETTINGS: dict[str, Any] = {
    "temperature": 1.0,
    "method": "fedncm,fed3r",
    "fine_tune": "probe",
    "start_head": "all",
    "num_server_rounds": 2,
    "num_clients": 4,
}


@pytest.fixture(scope="module")
def untracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("untracked"), **SETTINGS)


def tensorboard(folder: Path) -> Any:
    """Return the events of a run, read by TensorBoard itself."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder / "tensorboard")).Reload()


def tensorboard_points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) of every scalar."""
    events = tensorboard(folder)
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def tensorboard_others(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of texts and of images."""
    tags = tensorboard(folder).Tags()
    return sorted(tag.removesuffix("/text_summary") for tag in tags["tensors"]), sorted(tags["images"])


def expected_points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what a tracker must have, from the files of the run."""
    points: dict[str, list[tuple[int, float]]] = {}
    for one in read_rounds(folder / "rounds.jsonl"):
        for key in ("accuracy", "loss", "bytes_up"):
            points.setdefault(f"{one.start}-{one.stage}/{key}", []).append((one.round, getattr(one, key)))
    for name, entry in read_json(folder, "results.json")["methods"].items():
        points |= {f"{name}/{key}": [(1, entry[key])] for key in ("accuracy", "macro_f1", "wire_bytes")}
    return points


def assert_has(found: Mapping[str, list[tuple[int, float]]], folder: Path) -> None:
    for name, points in expected_points(folder).items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in points], rel=1e-6), name
    # (C, d) and (C,) float32 of four clients, each with a header of 128 bytes.
    assert found["fedncm-probe/bytes_up"][-1][1] == 4 * (4 * 330 + 2 * 128)


def test_tensorboard_has_every_round_and_the_run_is_the_same(tmp_path: Path, untracked: Path) -> None:
    pytest.importorskip("tensorboard", reason="extra tensorboard is not installed")
    folder = simulate(tmp_path, tracker="tensorboard", plots=True, **SETTINGS)
    found = tensorboard_points(folder)
    assert_has(found, folder)
    assert all(math.isfinite(value) for points in found.values() for _, value in points)
    texts, images = tensorboard_others(folder)
    assert {"settings", "config.json", "results.json", "README.md", "state"} <= set(texts)
    assert images == sorted(path.stem for path in (folder / "plots").glob("*.png")) and "fine_tuning" in images
    assert head_bytes(folder) == head_bytes(untracked)


def test_mlflow_has_one_run_with_settings_points_and_files(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="extra mlflow is not installed")
    folder = simulate(tmp_path, tracker="mlflow", **SETTINGS)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlruns' / 'mlflow.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "fedstats-app"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "7"
    assert run.data.params["method"] == "fedncm,fed3r" and run.data.params["num-server-rounds"] == "2"
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    assert_has({name: [(one.step, one.value) for one in points] for name, points in histories.items()}, folder)
    kept = folder / "mlruns" / "artifacts" / run.info.run_id / "artifacts" / "results.json"
    assert kept.read_bytes() == (folder / "results.json").read_bytes()


def test_wandb_stays_offline_and_in_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="extra wandb is not installed")
    folder = simulate(tmp_path, tracker="wandb", **SETTINGS)
    (offline,) = (folder / "wandb").glob("offline-run-*")
    (log,) = offline.glob("run-*.wandb")
    assert log.stat().st_size > 10_000
    written = log.read_bytes()
    for name in (*expected_points(folder), "num-server-rounds"):
        assert name.encode() in written, name
    assert (offline / "files" / "results.json").exists()


def test_a_run_that_goes_on_is_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="extra tensorboard is not installed")
    from fedstats_app.server.training import Training

    settings = {**SETTINGS, "start_head": "fedncm", "checkpoint_every": 1, "tracker": "tensorboard"}
    record = Training.record

    def die(self: Training, number: int, *arguments: Any, **costs: Any) -> None:
        if number == 2:
            raise Killed
        record(self, number, *arguments, **costs)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "record", die)
        folder = killed(tmp_path, **settings)
    simulate(tmp_path, resume=str(folder), **settings)
    assert [step for step, _ in tensorboard_points(folder)["fedncm-probe/accuracy"]] == [0, 1, 2]


def test_personal_models_and_rounds_of_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, dict[str, float]]] = []
    monkeypatch.setattr(Trackers, "scalars", lambda self, values, step: told.append((step, dict(values))))
    folder = simulate(
        tmp_path, method="fedncm,fed3r", fraction_train=0.5, num_clients=4, personalise="global,closed-form"
    )
    results = read_json(folder, "results.json")
    steps = [step for step, values in told if "fedncm/accuracy" in values]
    assert steps == [1, 2, 2]  # two rounds, and all that is known in the end
    values = {name: value for _, values in told for name, value in values.items()}
    for name, entry in results["personal"].items():
        assert values[f"{name}/accuracy_mean"] == entry["accuracy_mean"]
        assert values[f"{name}/bytes_up"] == entry["bytes_up"]
    assert values["fed3r/wire_bytes"] == results["methods"]["fed3r"]["wire_bytes"]


class Broken:
    """Fails in one of its duties, and counts what it is asked."""

    def __init__(self, failing: str) -> None:
        self.failing, self.asked = failing, list[str]()

    def _do(self, what: str) -> None:
        self.asked.append(what)
        if what == self.failing:
            raise RuntimeError("quota exceeded")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._do("scalars")

    def file(self, path: Path) -> None:
        self._do("file")

    def finish(self, state: str) -> None:
        self._do("finish")


@pytest.mark.parametrize("failing", ["start", "scalars", "file", "finish"])
def test_a_tracker_that_fails_is_named_once_and_harms_nothing(
    failing: str, tmp_path: Path, untracked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Broken(failing)

    def begin(*_: object) -> Broken:
        broken._do("start")
        return broken

    monkeypatch.setitem(module.TRACKERS, "wandb", begin)
    monkeypatch.setattr(module, "check_installed", lambda names: None)
    folder = simulate(tmp_path, tracker="wandb", **SETTINGS)
    assert read_json(folder, "status.json")["state"] == "completed"
    said = [line for line in capsys.readouterr().out.splitlines() if "wandb" in line]
    assert said == ["[fedstats] tracker wandb failed and gets nothing more of this run: RuntimeError: quota exceeded"]
    assert broken.asked[-1] == failing and broken.asked.count(failing) == 1
    assert head_bytes(folder) == head_bytes(untracked)


def test_a_run_that_fails_ends_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = list[str]()
    monkeypatch.setattr(Trackers, "finish", lambda self, state: states.append(state))
    with pytest.raises(ValueError, match="memory takes"):
        simulate(tmp_path, method="fed3r", max_classes=3)
    simulate(tmp_path / "other", method="fedncm")
    assert states == ["failed", "completed"]


@pytest.mark.parametrize("names", ["mlflow", "tensorboard,mlflow"])
def test_a_missing_extra_is_one_sentence_before_anybody_is_asked(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = module.importlib.util.find_spec
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: there(name) if name not in TRACKERS else None)
    missing = names.replace(",", ", ")
    expected = rf'tracker: {missing} is not installed.*pip install "fedstats-app\[{names}\]"'
    with pytest.raises(ValueError, match=expected):
        simulate(tmp_path, tracker=names, method="fedncm")
    (folder,) = (tmp_path / "runs").iterdir()
    assert "pip install" in read_json(folder, "status.json")["reason"]
    assert not (folder / "clients.jsonl").exists()
