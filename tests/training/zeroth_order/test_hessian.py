"""Directions scaled by the diagonal Hessian: the recursion, the bits, what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedstats_app.training.zeroth_order.directions import CPU_BLOCK, Directions, Distribution
from fedstats_app.training.zeroth_order.hessian import FLOOR, DiagonalHessian, unit
from fedstats_app.training.zeroth_order.log import Update
from fedstats_app.training.zeroth_order.replica import Replica, SeedPool

NU = 0.25
LOG = [Update(11, (0.5, -0.25)), Update(12, (-1e-3, 2e-3)), Update(13, (0.0, 0.0)), Update(14, (3.0, 1.0))]


def replica(dtype: torch.dtype = torch.float64, distribution: Distribution = "gaussian", width: int = 7) -> Replica:
    torch.manual_seed(0)
    model = nn.Linear(width, 3).to(dtype)
    return Replica(
        model, ["weight", "bias"], num_directions=2, directions=Directions(distribution), hessian_smoothing=NU
    )


def drawn(seed: int, index: int, name: str, size: int, distribution: Distribution = "gaussian") -> Tensor:
    return torch.cat([block for _, block in Directions(distribution).blocks(seed, index, name, size)]).double()


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
def test_the_replica_is_that_of_the_recursion(distribution: Distribution) -> None:
    """Against the formulas in float64; h itself is kept in float32."""
    tuned = replica(distribution=distribution)
    theta = {name: one.detach().reshape(-1).clone() for name, one in tuned.parameters.items()}
    h = {name: torch.ones_like(one) for name, one in theta.items()}
    tuned.apply(LOG)
    for update in LOG:
        length = math.hypot(*update.steps)
        for name in theta:
            u = [drawn(update.seed, i, name, len(theta[name]), distribution) / h[name].sqrt() for i in range(2)]
            step = update.steps[0] * u[0] + update.steps[1] * u[1]
            theta[name] -= step
            if length:
                h[name] = (1 - NU) * h[name] + NU * ((step / length) ** 2 + FLOOR)
    assert tuned.hessian is not None
    for name, one in theta.items():
        torch.testing.assert_close(tuned.hessian.values[name].double(), h[name], rtol=1e-5, atol=0)
        torch.testing.assert_close(tuned.parameters[name].detach().reshape(-1), one, rtol=0, atol=1e-5)
        assert h[name].std() > 0.05


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_interrupted_or_not_the_bits_are_the_same(dtype: torch.dtype) -> None:
    whole, parts, taken_over = (replica(dtype, width=CPU_BLOCK // 2) for _ in range(3))  # three draws for the weight
    whole.apply(LOG)
    for update in LOG[:2]:
        parts.apply([update])
    taken_over.load({name: tensor.clone() for name, tensor in parts.state().items()}, 2)
    assert parts.digest() == taken_over.digest() != whole.digest()
    for one in (parts, taken_over):
        one.apply(LOG[2:])
        assert one.digest() == whole.digest()


def test_a_digest_sees_the_hessian() -> None:
    """A replica whose parameters are right and whose next direction would not be is found before that."""
    one, other = replica(), replica()
    assert other.hessian is not None
    assert one.digest() == other.digest()
    other.hessian.values["bias"][1] = math.nextafter(1.0, 2.0) + 1e-6
    assert one.digest() != other.digest()


def test_single_signs_say_nothing() -> None:
    model = nn.Linear(5, 2)
    tuned = Replica(model, ["weight"], hessian_smoothing=NU)
    tuned.apply([Update(number, (0.1 * number,)) for number in range(1, 20)])
    assert tuned.hessian is not None
    assert len(tuned.hessian.values["weight"].unique()) == 1


def test_on_average_directions_keep_their_length() -> None:
    """So that a learning rate means what it means without the estimate."""
    tuned = replica(torch.float32, width=4000)
    tuned.apply([Update(number, (1e-9 * number, -1e3)) for number in range(1, 60)])
    (probe, *_) = tuned.probes(99)
    squares = torch.cat([block for _, block in probe.blocks(tuned.parameters["weight"], "weight")]).square()
    assert 0.8 < float(squares.mean()) < 1.6


@given(
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=9).filter(lambda steps: any(abs(s) > 1e-300 for s in steps))
)
def test_unit_steps_have_length_one_and_the_same_ratios(steps: list[float]) -> None:
    made = unit(steps)
    assert math.hypot(*made) == pytest.approx(1.0)
    largest = max(range(len(steps)), key=lambda index: abs(steps[index]))
    for step, share in zip(steps, made, strict=True):
        assert share / made[largest] == pytest.approx(step / steps[largest], abs=1e-12)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"smoothing must lie in .0, 0.5., got 0.75"):
        DiagonalHessian({}, 0.75)
    with pytest.raises(ValueError, match="exclude a finite pool of seeds"):
        Replica(nn.Linear(2, 2), ["weight"], pool=SeedPool(0, 2), hessian_smoothing=NU)
