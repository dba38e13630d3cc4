"""Rows in few bits: near the exact ones, right on average, and the same whenever they are made again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.statistics.quantisation import decoded, direction_codes, encoded, unit_rows


def rows(seed: int, number: int = 5, width: int = 7, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(number, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(
    st.integers(0, 1000),
    st.integers(0, 6),
    st.integers(1, 9),
    st.integers(-12, 12),
    st.sampled_from(["float16", "int8"]),
    st.booleans(),
)
def test_no_row_is_off_by_a_step(seed: int, number: int, width: int, exponent: int, kind: str, dithered: bool) -> None:
    exact = rows(seed, number, width, 10.0**exponent)
    codes, scales = encoded(exact, kind, dithered=dithered)
    errors = torch.linalg.vector_norm(decoded(codes, scales).double() - exact, dim=1)
    lengths = torch.linalg.vector_norm(exact, dim=1)
    most = scales.double() * width**0.5 if kind == "int8" else 2.0**-11 * lengths + 2.0**-24 * width * scales.double()
    assert bool((errors <= most + 1e-6 * lengths).all())


def test_dithered_rows_are_right_on_average_and_the_same_again() -> None:
    exact = rows(0, 4000, 3)
    exact[:, 0] = 10.0  # the step is that of this one
    codes, scales = encoded(exact, "int8", dithered=True)
    assert torch.equal(codes, encoded(exact.clone(), "int8", dithered=True)[0])
    errors = decoded(codes, scales).double()[:, 1:] - exact[:, 1:]
    step = 10.0 / 127
    assert float(errors.abs().max()) <= step and abs(float(errors.mean())) < 4 * step / 8000**0.5
    plain = decoded(*encoded(exact, "int8")).double()[:, 1:] - exact[:, 1:]
    assert float(plain.abs().max()) <= step / 2 + 1e-6


def test_zeros_stay_zeros_and_what_is_too_large_is_refused() -> None:
    for kind in ("float16", "int8"):
        codes, scales = encoded(torch.zeros(2, 3), kind, dithered=True)
        assert not codes.any() and not scales.any() and not decoded(codes, scales).any()
    with pytest.raises(ValueError, match="must fit float32"):
        encoded(torch.full((1, 2), 1e300, dtype=torch.float64), "int8")


def test_directions_have_length_one_and_the_same_codes_again() -> None:
    exact = torch.linalg.qr(rows(1, 64, 8)).Q.T
    codes = direction_codes(exact)
    made = unit_rows(codes)
    torch.testing.assert_close(torch.linalg.vector_norm(made, dim=1), torch.ones(8))
    assert torch.equal(direction_codes(made), codes) and float((made.double() - exact).norm(dim=1).max()) < 0.01
