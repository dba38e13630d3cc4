"""A client's counts with noise on them: whose they are, and how far uniform noise goes."""

from collections.abc import Callable
from typing import Any

from research.benchmarks import count_noise
from tests.research.benchmarks.conftest import FEW


def test_counts_are_the_clients_and_uniform_noise_stays_in_its_band(measured: Callable[..., list[Any]]) -> None:
    lines = measured(count_noise, count_noise.Counts, f"{FEW} dirichlet-alpha=1.0", "--clients", "5", "--client", "2")
    assert len(lines) > 3 and all(line.count >= 1 for line in lines)
    for line in lines:
        assert len(line.noisy["laplace"]) == 5 == len(set(line.noisy["uniform"]))
        assert all(abs(noisy - line.count) <= 0.9 * line.count for noisy in line.noisy["uniform"])
    assert any(abs(noisy - line.count) > 0.9 * line.count for line in lines for noisy in line.noisy["laplace"])
