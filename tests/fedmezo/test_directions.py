"""Directions, and parameters moved along them: the same bits everywhere."""

import hashlib
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstats_app.fedmezo import directions as module
from fedstats_app.fedmezo.directions import Directions, Probe, flat

DISTRIBUTIONS = ["rademacher", "gaussian"]


def draw(distribution: Any, size: int, seed: int = 7, index: int = 1, name: str = "head.weight") -> Tensor:
    """Return all blocks of a draw as one tensor, checking that they cover it in order."""
    blocks = list(Directions(distribution).blocks(seed, index, name, size))
    assert [position for places, _ in blocks for position in range(size)[places]] == list(range(size))
    return torch.cat([values for _, values in blocks]) if blocks else torch.zeros(0)


def philox(key: tuple[int, int], counter: int) -> list[int]:
    """One block of Philox4x64-10, after Salmon et al., figure 2, in whole numbers."""
    words, (first, second), limit = [counter, 0, 0, 0], key, 2**64
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [(right // limit) ^ words[1] ^ first, right % limit, (left // limit) ^ words[3] ^ second, left % limit]
        first, second = (first + 0x9E3779B97F4A7C15) % limit, (second + 0xBB67AE8584CAA73B) % limit
    return words


def literal_bits(words: int) -> list[int]:
    """The bits of the draws below, the lowest of a word first."""
    digest = hashlib.sha256(b"direction\x007\x001\0head.weight").digest()
    key = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")
    drawn = [word for counter in range(1, words // 4 + 1) for word in philox(key, counter)]  # numpy counts first
    return [word >> bit & 1 for word in drawn for bit in range(64)]


def literal_words(bits: list[int]) -> list[int]:
    return [sum(bits[first + k] << k for k in range(16)) for first in range(0, len(bits), 16)]


def test_signs_are_the_bits_of_philox() -> None:
    assert draw("rademacher", 1000).tolist() == [2 * bit - 1 for bit in literal_bits(16)[:1000]]


def test_normal_numbers_are_quantiles_at_its_words() -> None:
    words = literal_words(literal_bits(64))
    expected = [round(NormalDist().inv_cdf((word + 0.5) / 2**16) * 2**12) / 2**12 for word in words]
    assert draw("gaussian", 250).tolist() == expected[:250]


@pytest.mark.parametrize(
    ("distribution", "digest"),
    [("rademacher", "9b3815b75e9fb4eaae46ad923acac3cd"), ("gaussian", "787ed0e94729007113233cbb5f0a9c44")],
)
def test_the_stream_is_frozen(distribution: str, digest: str) -> None:
    """Over more than one block: who changes it makes every log of a training unreadable."""
    assert hashlib.sha256(draw(distribution, 70_001).numpy().astype("<f4").tobytes()).hexdigest()[:32] == digest


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("block", [64, 4096, 2**20])
def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch, distribution: str, block: int) -> None:
    expected = draw(distribution, 10_007)
    monkeypatch.setattr(module, "CPU_BLOCK", block)
    assert torch.equal(draw(distribution, 10_007), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_gpu_draws_the_same(distribution: Any) -> None:
    made = list(Directions(distribution).blocks(7, 1, "head.weight", 100_001, torch.device("cuda")))
    assert torch.equal(torch.cat([values for _, values in made]).cpu(), draw(distribution, 100_001))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_draws_of_other_keys_have_nothing_in_common(distribution: str) -> None:
    size, keys = 40_000, [(1, 0, "a"), (2, 0, "a"), (1, 1, "a"), (1, 0, "b"), (1, 0, "a.b")]
    drawn = torch.stack([draw(distribution, size, *key) for key in keys]).double()
    correlations = drawn @ drawn.T / size - torch.eye(len(keys), dtype=torch.float64)
    assert float(correlations.fill_diagonal_(0.0).abs().max()) < 5 / size**0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: draw("rademacher", 1, -1), r"seed must lie in \[0, 2\^63\) .* got -1 and 1"),
        (lambda: draw("rademacher", 1, 2**63), r"seed must lie in \[0, 2\^63\) .* got 9223372036854775808 and 1"),
        (lambda: draw("rademacher", 1, 0, -1), r"index be at least 0, got 0 and -1"),
        (lambda: Directions("uniform"), "distribution must be one of rademacher, gaussian, got 'uniform'"),  # type: ignore[arg-type]
        (lambda: flat(torch.ones(3, dtype=torch.float16)), r"float64, float32, got torch\.float16"),
        (lambda: flat(torch.ones(3, 2).T), r"must be contiguous, got strides \(1, 2\)"),
    ],
)
def test_what_cannot_be_drawn_or_tuned_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_platform_with_other_quantiles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logarithm is a little off: the table would differ, and with it the federation's models."""
    ndtri = torch.special.ndtri
    monkeypatch.setattr(torch.special, "ndtri", lambda values: ndtri(values) * 1.001)
    module.quantiles.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"other normal quantiles .* use rademacher"):
            draw("gaussian", 1)
    finally:
        module.quantiles.cache_clear()


SIZE = 80_000  # more than a block


def theta(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape or (SIZE,), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def direction(probe: Probe, name: str, size: int) -> Tensor:
    return torch.cat([z for _, z in probe.directions.blocks(probe.seed, probe.index, name, size)])


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
