"""What class means foretell is the training of a client whose samples are the means; nothing is foretold of others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedstats_app.training.foretold import BIAS, MOST_STEPS, WEIGHT, ClassMeans, common_factor, fitting

COUNTS = {0: torch.tensor([3, 0, 1]), 1: torch.zeros(3, dtype=torch.int64), 2**63 + 5: torch.tensor([1, 1, 2])}
LABELS = torch.tensor([0, 0, 0, 2])  # of client 0
TEMPERATURE = 0.5


@pytest.fixture
def means() -> ClassMeans:
    sums = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([[4.0], [1.0], [3.0]])
    return ClassMeans.of_sums(torch.tensor([4, 1, 3]), sums, COUNTS)


def head(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {WEIGHT: torch.randn(3, 5, generator=generator), BIAS: torch.randn(3, generator=generator)}


def descended(
    means: ClassMeans, start: dict[str, Tensor], trained: list[str], rate: float, steps: int
) -> dict[str, Tensor]:
    now = {name: tensor.clone().requires_grad_(name in trained) for name, tensor in start.items()}
    for _ in range(steps):
        logits = F.linear(means.means[LABELS], now[WEIGHT], now[BIAS]) / TEMPERATURE
        F.cross_entropy(logits, LABELS).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for name in trained:
                gradient = now[name].grad
                assert gradient is not None
                now[name] -= rate * gradient
                now[name].grad = None
    return {name: now[name].detach() - start[name] for name in trained}


@pytest.mark.parametrize("trained", [[WEIGHT, BIAS], [WEIGHT]])
@pytest.mark.parametrize("steps", [1, 3])
def test_an_update_is_that_of_samples_at_the_means(means: ClassMeans, trained: list[str], steps: int) -> None:
    start = head(1)
    moving, fixed = ({k: v for k, v in start.items() if (k in trained) == own} for own in (True, False))
    found = means.update(0, moving, fixed, rate=0.1, steps=steps, temperature=TEMPERATURE)
    expected = descended(means, start, trained, 0.1, steps)
    assert found.keys() == set(trained)
    for name in trained:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6)


def test_many_steps_are_as_few_longer_ones(means: ClassMeans) -> None:
    found, fewer = (
        means.update(0, head(1), {}, rate=rate, steps=steps)
        for rate, steps in ((1e-3, 50 * MOST_STEPS), (0.05, MOST_STEPS))
    )
    torch.testing.assert_close(found[WEIGHT], fewer[WEIGHT])


def test_of_clients_without_samples_or_unknown_nothing_is_foretold(means: ClassMeans) -> None:
    assert means.update(1, head(1), {}, rate=0.1, steps=1) == means.update(7, head(1), {}, rate=0.1, steps=1) == {}


def test_one_factor_fits_most_and_a_liar_does_not_choose_it() -> None:
    foretold = {WEIGHT: torch.tensor([1.0, 2.0])}
    assert fitting({WEIGHT: torch.tensor([3.0, 6.0])}, foretold) == pytest.approx(3.0)
    assert fitting({WEIGHT: torch.tensor([2.0, -1.0])}, foretold) == 0.0
    assert fitting({}, {}) is fitting({WEIGHT: torch.ones(2)}, {WEIGHT: torch.zeros(2)}) is None
    assert common_factor([1.2, None, 1.4, -1e9]) == 1.2
    assert common_factor([-1.0, -2.0, 5.0]) == common_factor([None]) == 0.0


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"means must be \(C, D\)"):
        ClassMeans(torch.zeros(4, 2), COUNTS)
    with pytest.raises(ValueError, match="at least 0"):
        ClassMeans(torch.zeros(3, 2), {0: torch.tensor([1, -1, 0])})
