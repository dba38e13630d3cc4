from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedstats_app.fedmezo.directions import Directions, Probe, flat, round_stochastically, rounding_bits
from tests.support.compare import same_bits

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SIZE = 80_000  # more than a block


def theta(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape or (SIZE,), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def direction(probe: Probe, name: str, size: int) -> Tensor:
    return torch.cat([z for _, z in probe.directions.blocks(probe.seed, probe.index, name, size)])


def along(probe: Probe, parameter: Tensor, name: str = "w") -> Tensor:
    return torch.cat([values for _, values in probe.blocks(parameter, name)])


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sides_are_theta_plus_and_minus_epsilon_z(dtype: torch.dtype, distribution: str) -> None:
    probe, parameter = Probe(3, 1, 1e-3, Directions(distribution)), theta(dtype)  # type: ignore[arg-type]
    z = direction(probe, "w", SIZE)
    for sign in (1, -1):
        made = probe.perturbed(parameter, "w", sign)
        assert made.dtype == dtype
        # One rounding of the product and one of the sum.
        spacing = torch.finfo(dtype).eps * (parameter.double().abs() + 2e-2)
        assert bool(((made.double() - (parameter.double() + sign * 1e-3 * z.double())).abs() <= spacing).all())
        assert float((made - parameter).double().abs().min()) >= (0.9e-3 if distribution == "rademacher" else 0.0)


def test_sides_in_bfloat16_are_rounded_by_the_same_bits() -> None:
    probe, parameter = Probe(3, 1, 1e-3), theta(torch.bfloat16)
    z = direction(probe, "w", SIZE)
    bits = torch.cat([values for _, values in rounding_bits(3, 1, "w", SIZE)])
    for sign in (1, -1):
        expected = round_stochastically(parameter.float() + sign * (z * 1e-3), bits)
        assert torch.equal(probe.perturbed(parameter, "w", sign), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7, 3), (2, 3, 5, 5), (0, 4)])
def test_shape_and_dtype_are_kept_and_theta_stays(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    parameter = torch.ones(shape, dtype=dtype).requires_grad_()
    before = parameter.detach().clone()
    made = Probe(3, 0, 0.5).perturbed(parameter, "w", 1)
    assert (made.shape, made.dtype, made.requires_grad) == (torch.Size(shape), dtype, False)
    assert sum(values.numel() for _, values in Probe(3, 0, 0.5).blocks(parameter, "w")) == parameter.numel()
    assert torch.equal(parameter, before) and set(made.flatten().tolist()) <= {0.5, 1.5}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_direction_is_z(dtype: torch.dtype) -> None:
    probe, parameter = Probe(3, 1, 1e-3, Directions("gaussian")), theta(dtype)
    expected = direction(probe, "w", SIZE).to(torch.float64 if dtype == torch.float64 else torch.float32)
    assert same_bits(along(probe, parameter), expected)


def test_in_bfloat16_the_model_is_probed_along_z_on_average() -> None:
    """A weight of 1 to 2 has a spacing of 0.0078, so a step of 0.001 is mostly none and sometimes eight times."""
    probe, parameter = Probe(3, 1, 1e-3), (1 + theta(torch.float32).abs().clamp(max=0.99)).to(torch.bfloat16)
    plus, minus = (probe.perturbed(parameter, "w", sign).double() for sign in (1, -1))
    made, z = (plus - minus) / 2e-3, direction(probe, "w", SIZE).double()
    assert 0.6 < float((made == 0).double().mean()) < 0.9
    products = made * z
    assert abs(float(products.mean()) - 1.0) < 5 * float(products.std()) / SIZE**0.5 < 0.1


def test_names_seeds_and_numbers_are_other_directions() -> None:
    parameter = theta(torch.float32)
    probes = [(Probe(3, 1, 1.0), "w"), (Probe(3, 1, 1.0), "v"), (Probe(4, 1, 1.0), "w"), (Probe(3, 0, 1.0), "w")]
    made = torch.stack([along(probe, parameter, name) for probe, name in probes]).double()
    assert float((made @ made.T / SIZE - torch.eye(4, dtype=torch.float64)).abs().max()) < 5 / SIZE**0.5


def test_a_dtype_that_cannot_be_tuned_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be one of float64, float32, bfloat16, got torch\.float16"):
        Probe(3, 1, 1e-3).perturbed(torch.ones(3, dtype=torch.float16), "w", 1)


def test_another_layout_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be contiguous, got strides \(1, 2\)"):
        flat(torch.ones(3, 2).T)
