"""Replicas and their log: bits, replays, damaged files, refusals."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedstats_app.fedmezo.directions import Directions
from fedstats_app.fedmezo.log import TrainingFiles, Update, pack_updates, unpack_updates
from fedstats_app.fedmezo.replica import Replica
from tests.support.damage import flipped

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64)
SEEDS = st.integers(0, 2**63 - 1)


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 300), nn.ReLU(), nn.Linear(300, 3)).to(dtype)


def replica(dtype: torch.dtype = torch.float32, **options: object) -> Replica:
    model = network(dtype)
    return Replica(model, [name for name, _ in model.named_parameters()], **options)  # type: ignore[arg-type]


def updates(number: int, num_directions: int = 1) -> list[Update]:
    draw = np.random.default_rng(1)
    seeds = [int(seed) for seed in draw.integers(0, 2**63, number)]
    return [Update(seed, tuple(draw.normal(0, 1e-3, num_directions).tolist())) for seed in seeds]


# Updates


@pytest.mark.parametrize("num_directions", [1, 3])
def test_updates_in_one_go_or_one_by_one_are_the_same_bits(num_directions: int) -> None:
    log = updates(6, num_directions)
    one, other = (replica(num_directions=num_directions) for _ in range(2))
    one.apply(log)
    for update in log:
        other.apply([update])
    assert (one.round, one.digest()) == (6, other.digest()) and one.digest() != replica().digest()


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
def test_an_update_is_theta_minus_steps_times_directions(distribution: str) -> None:
    directions = Directions(distribution)  # type: ignore[arg-type]
    tuned, before = replica(torch.float64, num_directions=2, directions=directions), network(torch.float64)
    (update,) = updates(1, 2)
    tuned.apply([update])
    for name, theta in before.named_parameters():
        blocks = [directions.blocks(update.seed, index, name, theta.numel()) for index in range(2)]
        drawn = [torch.cat([values for _, values in block]) for block in blocks]
        change = sum(step * z.double() for step, z in zip(update.steps, drawn, strict=True))
        expected = theta.detach() - change.view(theta.shape)  # type: ignore[union-attr]
        torch.testing.assert_close(tuned.parameters[name].detach(), expected, rtol=0, atol=1e-15)


def test_a_state_is_taken_over() -> None:
    one, other = replica(), replica()
    one.apply(updates(4))
    other.load({name: tensor.clone() for name, tensor in one.state().items()}, 4)
    assert (other.round, other.digest()) == (4, one.digest())
    digest = other.digest()
    with pytest.raises(ValueError, match="the state must have"):
        other.load({}, 1)
    with pytest.raises(ValueError, match="the state must have"):
        other.load({name: tensor.double() for name, tensor in one.state().items()}, 1)
    assert (other.round, other.digest()) == (4, digest)


def test_a_digest_sees_names_dtypes_and_every_bit() -> None:
    tuned = replica()
    digests = {tuned.digest(), replica(torch.float64).digest(), Replica(network(), ["0.weight"]).digest()}
    with torch.no_grad():
        tuned.parameters["2.bias"][2] = torch.nextafter(tuned.parameters["2.bias"][2], torch.tensor(1.0))
    assert len({*digests, tuned.digest()}) == 4 and tuned.is_finite
    tuned.apply([Update(1, (1e300,))])
    assert not tuned.is_finite


# The log


@given(st.lists(st.tuples(SEEDS, st.tuples(FINITE, FINITE))))
def test_a_log_goes_through_bytes(entries: list[tuple[int, tuple[float, float]]]) -> None:
    log = [Update(seed, steps) for seed, steps in entries]
    data = pack_updates(log)
    assert len(data) == 24 * len(log) and unpack_updates(data, 2) == log


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: unpack_updates(b"12345678", 1), "updates of 1 direction.s. take 16 bytes each, got 8"),
        (lambda: Update(-1, (1.0,)), "seed must lie in"),
        (lambda: Update(1, (math.nan,)), "steps must be finite"),
        (lambda: replica().apply([Update(1, (1.0, 2.0))]), "must have 1 step"),
        (lambda: Replica(network(), ["3.weight"]), "the tuned part must be parameters of the model, 0.weight"),
        (lambda: replica(torch.float16), "must be one of float64, float32, got torch.float16"),
    ],
)
def test_what_cannot_be_is_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


UPDATES = [Update(5, (0.25,)), Update(2**63 - 1, (-1e-300,)), Update(0, (0.0,))]


def test_one_flipped_bit_anywhere_in_the_log_is_an_error_that_names_it(tmp_path: Path) -> None:
    files = TrainingFiles(tmp_path)
    files.save_log(UPDATES)
    path = tmp_path / "log.bin"
    assert files.load_log(1) == UPDATES
    for damaged in flipped(path.read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=re.escape(f"{path} is damaged")):
            files.load_log(1)
