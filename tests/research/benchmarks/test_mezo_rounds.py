"""The quotient of rounds, the exact diagonal, and that the table is made."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedstats_app.heads import LinearHead
from research.benchmarks.mezo_rounds import exact_diagonal, quotient, rows


def test_a_quotient_has_two_sides() -> None:
    slow, fast = [4.0, 3.0, 2.0, 1.0, 1.0], [4.0, 2.0, 1.0, 0.5, 0.25]
    assert quotient(slow, fast) == 1.5
    assert quotient(fast, slow) == pytest.approx(1 / 1.5)
    assert quotient(slow, slow) == 1.0


def test_the_exact_diagonal_is_that_of_automatic_differentiation() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 4, generator=generator)
    labels = torch.randint(0, 3, (30,), generator=generator)
    head = LinearHead(torch.randn(3, 4, generator=generator).double(), torch.randn(3, generator=generator).double())

    def loss(theta: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(features.double() @ theta[:12].view(3, 4).T + theta[12:], labels)

    theta = torch.cat([head.weight.reshape(-1), head.bias])
    diagonal = torch.autograd.functional.hessian(loss, theta).diagonal()  # type: ignore[no-untyped-call]
    made = exact_diagonal(head, features)
    expected = (diagonal / diagonal.mean()).clamp(min=0.01).float()
    torch.testing.assert_close(torch.cat([made["head.weight"], made["head.bias"]]), expected)


def test_the_table_is_made() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    features = torch.randn(60, 8, generator=generator) + 2 * F.one_hot(labels, 8)
    lines = rows(features, labels, 3, [0.1], rounds=20, seeds=2, samples=50)
    assert [line.split(" | ")[0] for line in lines] == ["| plain", "| HiSo, 0.1", "| exact"]
