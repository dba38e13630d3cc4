import statistics
from pathlib import Path

import pytest

from fedstats_app.report.training_record import TrainingResult
from research.reproduce.seed_statistics import aggregate
from tests.support.trainings import make_training, write_run


def trainings(offset: float) -> list[TrainingResult]:
    return [
        make_training("random", [0.1, 0.3, 0.5 + offset], up=10**6, down=0, passes=100),
        make_training("fedcof", [0.4, 0.6 + offset, 0.7 + offset], up=10**6, down=0, passes=100, start_bytes=500_000),
    ]


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    other = {"num_clients": 3, "solve_seconds": None, "regulariser": "none"}
    return [
        write_run(tmp_path / str(seed), trainings(offset), {"fedcof": {"accuracy": 0.4 + offset, **other}})
        for seed, offset in enumerate([0.0, 0.1, 0.05])
    ]


def test_mean_and_deviation_of_methods_and_trainings(runs: list[Path]) -> None:
    found = aggregate(runs)
    accuracy = found["methods"]["fedcof"]["accuracy"]
    assert accuracy["values"] == pytest.approx([0.4, 0.5, 0.45]) and accuracy["mean"] == pytest.approx(0.45)
    assert accuracy["std"] == pytest.approx(statistics.stdev([0.4, 0.5, 0.45]))
    # What is no number, or in no seed a value, has no mean.
    assert set(found["methods"]["fedcof"]) == {"accuracy", "num_clients"}
    final = found["training"]["fedcof-probe"]
    assert final["accuracy"]["mean"] == pytest.approx(0.75) and final["start_accuracy"]["std"] == 0.0
    assert final["bytes"]["values"] == [2_500_000] * 3


def test_runs_that_are_not_seeds_of_one_experiment_are_refused(tmp_path: Path) -> None:
    one = write_run(tmp_path / "1", [], {"fed3r": {"accuracy": 0.5}})
    other = write_run(tmp_path / "2", [], {"fedncm": {"accuracy": 0.5}})
    with pytest.raises(ValueError, match=r"methods: every seed must have the same entries, got.*fed3r.*fedncm"):
        aggregate([one, other])
    with pytest.raises(ValueError, match="at least one run folder"):
        aggregate([])


def test_costs_are_those_of_the_first_round_with_the_accuracy_of_the_random_head_of_the_stage(tmp_path: Path) -> None:
    costs = {"up": 10, "down": 20, "start_bytes": 5, "start_forward_passes": 3}
    trainings = [
        make_training("random", [0.1, 0.2], stage="full"),
        make_training("random", [0.1, 0.66]),
        make_training("fed3r", [0.5, 0.6, None, 0.7, 0.65, 0.8], **costs),
        make_training("fedcof", [0.9], stage="features"),
    ]
    found = aggregate([write_run(tmp_path, trainings, {})])["training"]
    names = [f"{what}_to_random_head" for what in ("rounds", "bytes", "forward_passes")]
    assert [found["fed3r-probe"][name]["values"] for name in names] == [[3], [95], [33]]
    assert not set(names) & found["fedcof-features"].keys()
