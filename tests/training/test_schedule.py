"""The learning rate over the rounds: bounds, shapes, and what clients are told."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.option import ConfigError
from fedstats_app.storage.json_digest import read_json_lines
from fedstats_app.training.training_options import SCHEDULES, Schedule, rate_factor
from tests.support.simulation import simulate


@given(st.sampled_from(SCHEDULES), st.integers(1, 60), st.data())
def test_it_rises_to_1_and_falls_from_there_and_is_never_0(schedule: Schedule, total: int, data: st.DataObject) -> None:
    warm_up = data.draw(st.integers(0, total - 1))
    factors = [rate_factor(schedule, number, total, warm_up) for number in range(1, total + 1)]
    assert all(0.0 < factor <= 1.0 for factor in factors) and factors[warm_up] == 1.0
    assert factors[: warm_up + 1] == sorted(factors[: warm_up + 1])
    assert factors[warm_up:] == sorted(factors[warm_up:], reverse=True)
    steps = [later - earlier for earlier, later in pairwise(factors[: warm_up + 1])]
    assert steps == pytest.approx([1 / (warm_up + 1)] * warm_up)


def test_shapes() -> None:
    assert [rate_factor("constant", number, 4) for number in range(1, 5)] == [1.0] * 4
    assert [rate_factor("linear", number, 4) for number in range(1, 5)] == [1.0, 0.75, 0.5, 0.25]
    cosine = [rate_factor("cosine", number, 4) for number in range(1, 5)]
    assert cosine == pytest.approx([1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)])
    assert [rate_factor("linear", number, 4, warm_up=2) for number in range(1, 5)] == [1 / 3, 2 / 3, 1.0, 0.5]


def test_every_start_has_its_rate(tmp_path: Path) -> None:
    def trained(folder: str, **settings: object) -> tuple[dict[str, float], list[float]]:
        """Return every training's learning rate, and the losses of FedNCM's after every round."""
        fixed = {"method": "fedncm", "fine_tune": "probe", "temperature": 1.0, "num_server_rounds": 3}
        run = simulate(tmp_path / folder, **fixed | settings)
        found = json.loads((run / "results.json").read_text())["training"]
        rounds = read_json_lines(run / "rounds.jsonl")
        losses = [one["loss"] for one in rounds if one["start"] == "fedncm"]
        return {name: one["learning_rate"] for name, one in found.items()}, losses

    both = trained("a", start_head="fedncm,random", start_learning_rates="fedncm=0.5", learning_rate=0.01)
    assert both[0] == {"fedncm-probe": 0.5, "random-probe": 0.01}
    alone = trained("b", start_head="fedncm", learning_rate=0.5)
    falling = trained(
        "c", start_head="fedncm", learning_rate=0.5, fine_tune="probe@learning-rate-schedule=cosine@warm-up-rounds=1"
    )
    half = trained("d", start_head="fedncm", learning_rate=0.25)
    assert both[1] == alone[1]
    # The warm-up's one round has half the rate.
    assert falling[1][:2] == half[1][:2] and falling[1][2] not in (half[1][2], alone[1][2])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"start_learning_rates": "fedncm"}, "start-learning-rates: must be HEAD=RATE"),
        ({"start_learning_rates": "fedncm=0"}, "start-learning-rates: must be HEAD=RATE"),
        ({"start_learning_rates": "fedkov=0.1"}, "some of fedncm, fed3r"),
        ({"start_learning_rates": "random=0.1", "start_head": "fedncm"}, "start-head must name random too"),
        (
            {"fine_tune": "probe@warm-up-rounds=20"},
            "probe@warm-up-rounds: must be fewer than num-server-rounds 20, got 20",
        ),
        (
            {"fine_tune": "probe@learning-rate-schedule=step"},
            "fine-tune@learning-rate-schedule: must be one of constant, linear, cosine",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AppConfig.of(**settings)
    assert said in str(caught.value)


def test_variants_have_rates_too() -> None:
    rates = AppConfig.of(start_learning_rates="fedcof@shrinkage=1=0.25, label-words = 1e-3").tuning.rates
    assert rates == {"fedcof@shrinkage=1": 0.25, "label-words": 0.001}
