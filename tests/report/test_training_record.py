import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.base.files import to_json
from fedstats_app.report.training_record import RoundRecord, TrainingResult, forward_passes, training_bytes
from fedstats_app.report.wording import _about_training
from fedstats_app.training.trainers import TRAINERS
from tests.support.golden import published_costs
from tests.support.trainings import make_training

_COUNTS = st.integers(0, 2**60)
_RECORDS = st.builds(
    RoundRecord,
    stage=st.sampled_from(["probe", "full"]),
    start=st.sampled_from(["fedcof", "random"]),
    round=st.integers(0, 10**6),
    accuracy=st.none() | st.floats(0, 1),
    loss=st.none() | st.floats(0, math.inf),
    train_loss=st.none() | st.floats(0, math.inf),
    num_clients=_COUNTS,
    num_failed=_COUNTS,
    bytes_up=_COUNTS,
    bytes_down=_COUNTS,
    forward_passes=_COUNTS,
    seconds=st.floats(0, 1e9),
)


@given(_RECORDS)
def test_a_round_comes_back_from_its_line(record: RoundRecord) -> None:
    assert RoundRecord.from_json(json.loads(record.line())) == record


def test_accuracies_are_the_start_the_last_evaluated_and_the_first_best() -> None:
    training = make_training("fedcof", [0.8, None, 0.9, 0.9, 0.85, None])
    assert (training.start_accuracy, training.final_accuracy) == (0.8, 0.85)
    assert (training.best_accuracy, training.best_round) == (0.9, 2)
    nothing = make_training("fedcof", [None, None])
    assert (nothing.start_accuracy, nothing.final_accuracy, nothing.best_accuracy, nothing.best_round) == (None,) * 4
    assert replace(training, rounds=training.rounds[1:]).start_accuracy is None


@pytest.mark.parametrize(("high", "lines"), [(0.89, ["from 90.00 % to 85.00 %"]), (0.92, [])])
def test_a_training_that_lost_is_warned_of_where_it_cannot_be_chance(high: float, lines: list[str]) -> None:
    training = replace(make_training("fedcof", [0.9, 0.85]), quality={"accuracy_interval": [0.8, high]})
    found = list(_about_training(SimpleNamespace(trainings=[training])))  # type: ignore[arg-type]
    assert len(found) == len(lines) and all(line in warning for line, warning in zip(lines, found, strict=True))


def test_a_training_comes_back_from_its_entry_and_all_rounds_of_the_run() -> None:
    one = make_training(
        "fedcof",
        [0.8, 0.9],
        stopped="no better accuracy in 3 evaluations",
        start_bytes=7,
        start_forward_passes=8,
        formula_bytes=9,
        thesis_forward_passes=10,
        notes=["a note"],
    )
    others = [make_training("random", [0.1, 0.2]), make_training("fedcof", [0.7, 0.8], stage="full")]
    entry = json.loads(to_json(one.to_json()))
    assert entry["accuracy"] == 0.9 and (entry["bytes"], entry["forward_passes"], entry["num_rounds"]) == (3007, 18, 1)
    rounds = [record for training in (others[0], one, others[1]) for record in training.rounds]
    assert TrainingResult.from_json("fedcof-probe", entry, rounds) == one
    with pytest.raises(ValueError, match="'fedcof-probe' must have stopped"):
        TrainingResult.from_json("fedcof-probe", {key: entry[key] for key in entry if key != "stopped"}, rounds)
    with pytest.raises(ValueError, match="at least one round"):
        TrainingResult.from_json("fedcof-probe", entry, others[0].rounds)


_SQUEEZENET, _RESNET18 = 722_496, 11_176_512
_PROMPTS = 20 * 768
# Rounds, clients a round and trained parameters behind every row of training; heads have no bias.
_TRAININGS = {
    ("Fed-LP", "CIFAR-100"): (200, 30, 100 * 512),
    ("Fed-LP", "ImageNet-R"): (200, 30, 200 * 512),
    ("Fed-LP", "CUB200"): (200, 30, 200 * 512),
    ("Fed-LP", "Cars"): (200, 30, 196 * 512),
    ("Fed-LP", "iNat-120K"): (5000, 2782, 1203 * 512),
    ("FedAvg-PT", "CIFAR-100"): (120, 10, _PROMPTS + 100 * 768),
    ("FedAvg-PT", "ImageNet-R"): (120, 10, _PROMPTS + 200 * 768),
    ("FedAvg-PT", "CUB200"): (120, 10, _PROMPTS + 200 * 768),
    ("FedAvg-PT", "Cars"): (120, 10, _PROMPTS + 196 * 768),
}
_FINE_TUNINGS = {
    ("CIFAR-10", "SqueezeNet 1.1"): _SQUEEZENET + 10 * 512,
    ("CIFAR-100", "SqueezeNet 1.1"): _SQUEEZENET + 100 * 512,
    ("CIFAR-100", "ResNet-18"): _RESNET18 + 100 * 512,
    ("ImageNet-R", "ResNet-18"): _RESNET18 + 200 * 512,
}


def test_bytes_of_training_are_those_of_the_papers_tables() -> None:
    checked = 0
    for row in published_costs():
        if row["what"] == "FedAvg-FT 200r":
            rounds, clients, parameters = 200, 30, _FINE_TUNINGS[row["dataset"], row["backbone"]]
        elif (row["what"], row["dataset"]) in _TRAININGS:
            rounds, clients, parameters = _TRAININGS[row["what"], row["dataset"]]
        else:
            continue
        computed = training_bytes(num_rounds=rounds, clients_per_round=clients, num_parameters=parameters)
        assert f"{computed / 1e6:.4f}" == row["computed_MB"], row
        checked += 1
    assert checked == len(_TRAININGS) + len(_FINE_TUNINGS)


def test_forward_passes_are_the_theses() -> None:
    # CIFAR-10, 50,000 samples, 200 rounds of one local epoch; the thesis prints 1e6 for the probe by mistake.
    sizes = {"num_examples": 50_000, "num_rounds": 200, "repeats": 1}
    passes = {name: forward_passes(trainer.passes, **sizes) for name, trainer in TRAINERS.items()}
    assert passes["full"] == passes["features"] == 30_000_000 and passes["probe"] == 10_000_000
    assert forward_passes(1, num_examples=50_000) == 50_000  # the closed form
    assert forward_passes(TRAINERS["full"].passes, num_examples=800, num_rounds=3, repeats=5) == 36_000
