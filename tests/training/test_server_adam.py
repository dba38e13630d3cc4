from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedstats_app.training.server_adam import ServerAdam
from tests.support.compare import relative_difference, same_bits

SHAPES = {"head.bias": (3,), "head.weight": (3, 4), "scale": ()}


def draw(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def averages(seed: int, current: dict[str, Tensor]) -> dict[str, Tensor]:
    """What clients send: somewhere near where they started, as nothing depends on how they got there."""
    return {name: current[name] + 0.1 * change for name, change in draw(seed).items()}


def run(adam: ServerAdam, current: dict[str, Tensor], rounds: range) -> dict[str, Tensor]:
    for number in rounds:
        current = adam.step(current, averages(number, current))
    return current


def test_five_steps_are_those_of_torchs_adam_on_the_averaged_change() -> None:
    start = draw(0)
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    optimizer = torch.optim.Adam(parameters.values(), lr=0.01, weight_decay=1e-5)
    for number in range(1, 6):
        before = {name: value.detach().clone() for name, value in parameters.items()}
        for name, value in averages(number, before).items():
            parameters[name].grad = -(value - before[name])
        optimizer.step()
    ended = run(ServerAdam(0.01), start, range(1, 6))
    assert all(same_bits(ended[name], parameters[name].detach()) for name in SHAPES)


def test_the_formula_with_bias_correction_and_decay() -> None:
    adam, current = ServerAdam(0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2), draw(0)
    first, second = ({name: torch.zeros(shape).double() for name, shape in SHAPES.items()} for _ in range(2))
    for number in range(1, 4):
        average = averages(number, current)
        made = adam.step(current, average)
        for name, value in current.items():
            value = value.double()
            gradient = value - average[name].double() + 0.2 * value
            first[name] = 0.8 * first[name] + 0.2 * gradient
            second[name] = 0.95 * second[name] + 0.05 * gradient**2
            direction = first[name] / (1 - 0.8**number) / ((second[name] / (1 - 0.95**number)).sqrt() + 1e-3)
            assert relative_difference(made[name], value - 0.1 * direction) < 1e-5
        current = made


@pytest.mark.parametrize("stopped_after", [0, 1, 3])
def test_saved_and_resumed_in_the_middle_it_gives_the_same_bits(stopped_after: int) -> None:
    whole = run(ServerAdam(0.01), draw(0), range(1, 6))
    adam = ServerAdam(0.01)
    half = run(adam, draw(0), range(1, 1 + stopped_after))
    state = adam.state()
    run(adam, half, range(50, 52))  # what happens later must not reach into the state that was taken
    stored = load(save(state))
    for _ in range(2):  # nor into the one that was loaded
        resumed = ServerAdam(0.01)
        resumed.load_state(stored)
        ended = run(resumed, half, range(1 + stopped_after, 6))
        assert all(same_bits(ended[name], whole[name]) for name in SHAPES)


def test_running_statistics_are_averaged_and_not_adapted() -> None:
    adam, current = ServerAdam(0.5, buffers=frozenset({"scale"})), draw(0)
    average = averages(1, current)
    made = adam.step(current, average)
    assert same_bits(made["scale"], average["scale"])
    assert list(made) == list(current)
    assert not any("scale" in name for name in adam.state())
    assert not torch.equal(made["head.bias"], average["head.bias"])


def test_what_it_is_given_stays_as_it_is() -> None:
    current, average = draw(0), averages(1, draw(0))
    ServerAdam(0.5).step(current, average)
    assert all(same_bits(current[name], draw(0)[name]) for name in SHAPES)
    assert all(same_bits(average[name], averages(1, draw(0))[name]) for name in SHAPES)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"m_t/a": torch.ones(2)}, "missing or unknown: m_t/a, step"),
        ({"step": torch.ones(1), "exp_avg/a": torch.ones(2)}, "missing or unknown: exp_avg_sq/a"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServerAdam(0.1).load_state(state)
