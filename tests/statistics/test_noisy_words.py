"""Sums with noise: one sample moves each by no more steps than a promise counts with, to the last step."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.heads.noisy import NoisyStatistics
from fedstats_app.secure.account import Promise, composed, least_honest
from fedstats_app.statistics.noisy_words import Division, NoisyKind, NoisyLayout, deviations, unit
from fedstats_app.statistics.secure_words import numbers_of

CLASSES, KEY = 3, bytes(range(32))
STEPS = 2**11
KINDS: tuple[NoisyKind, ...] = ("mean", "moments")
# A server sends what it likes as a mean, and knows some samples.
TINY = (5e-324, -5e-324, 1e-310, -1e-308, 1e-160, -(2.0**-501), 2.0**-500, 0.0, -0.0, 1.0, -1.0, 1e150, -1e308)


def drawn(seed: int, number: int, dim: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(number, dim, generator=draw, dtype=torch.float64)
    return features, torch.randint(CLASSES, (number,), generator=draw)


def whole(layout: NoisyLayout, kind: NoisyKind, features: Tensor, labels: Tensor, mean: Tensor) -> list[list[int]]:
    """The sums as Python's integers, which round nothing."""
    found = layout.sums(kind, [(features, labels)], mean if kind == "moments" else None)
    return [[int(value) for value in part.tolist()] for part in found]


def moved(layout: NoisyLayout, kind: NoisyKind, features: Tensor, labels: Tensor, mean: Tensor) -> list[int]:
    """The squares of how far the first sample moves each part of a sum."""
    pairs = zip(
        whole(layout, kind, features, labels, mean), whole(layout, kind, features[1:], labels[1:], mean), strict=True
    )
    return [sum((own - other) ** 2 for own, other in zip(*pair, strict=True)) for pair in pairs]


def check_hidden(features: Tensor, labels: Tensor, mean: Tensor) -> None:
    """One sample moves each part by at most all steps, to the last step."""
    layout = NoisyLayout(CLASSES, features.shape[1], moments=True, mu=1.0)
    assert moved(layout, "mean", features, labels, mean)[0] <= STEPS**2
    sums, diagonal, rest = moved(layout, "moments", features, labels, mean)
    assert sums <= STEPS**2 and diagonal + 2 * rest <= STEPS**4


@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([0.0, 1e-200, 1.0, 1e150, math.inf, math.nan]))
def test_one_sample_moves_each_part_by_at_most_all_steps(seed: int, dim: int, scale: float) -> None:
    features, labels = drawn(seed, 4, dim)
    features[0] *= scale
    check_hidden(features, labels, torch.randn(dim, generator=torch.Generator().manual_seed(seed)).double() * 20)


@given(st.lists(st.tuples(st.sampled_from(TINY), st.sampled_from(TINY)), min_size=1, max_size=9), st.booleans())
@example(pairs=[(0.0, -5e-324)] * 2, at_it=False)
def test_no_mean_makes_a_known_sample_longer(pairs: list[tuple[float, float]], at_it: bool) -> None:
    """Its mean of subnormal numbers, where a sample is 0, or the sample's own unit vector give or take one."""
    sample, mean = (torch.tensor(values, dtype=torch.float64) for values in zip(*pairs, strict=True))
    check_hidden(
        sample[None].repeat(2, 1), torch.zeros(2, dtype=torch.int64), unit(sample[None])[0] + mean if at_it else mean
    )


def test_what_travels_without_a_mask_has_random_words_behind_it() -> None:
    """A digest of exact sums alone would tell who guesses them right."""
    features, labels = drawn(0, 5, 8)
    layout = NoisyLayout(CLASSES, 8, moments=True, mu=1.0, salted=True)
    own = layout.sums("mean", [(features, labels)], None)
    (first, salt), (again, other) = layout.exact(own), layout.exact(own)
    assert np.array_equal(first, again) and torch.equal(numbers_of(first), own[0])
    assert not set(salt.tolist()) & set(other.tolist()) and len(salt) == 4
    assert [
        len(one) for one in layout.noisy("moments", [torch.zeros(24), torch.zeros(8), torch.zeros(28)], 1, KEY)
    ] == [number for number, _ in layout.shapes("moments")]


def test_one_sample_moves_a_part_by_nearly_all_steps() -> None:
    features, labels = drawn(0, 1, 9)
    layout = NoisyLayout(CLASSES, 9, moments=True, mu=1.0)
    sums, diagonal, rest = whole(layout, "moments", features, labels, torch.zeros(9, dtype=torch.float64))
    for length in (
        math.hypot(*sums) / STEPS,
        math.sqrt(math.hypot(*diagonal) ** 2 + 2 * math.hypot(*rest) ** 2) / STEPS**2,
    ):
        assert 0.995 < length <= 1.0


@given(st.integers(0, 1000), st.integers(1, 3))
def test_the_sums_are_the_same_for_any_split_and_order(seed: int, cut: int) -> None:
    features, labels = drawn(seed, 8, 6)
    turn = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    layout, mean = NoisyLayout(CLASSES, 6, moments=True, mu=1.0), torch.full((6,), 0.1, dtype=torch.float64)
    parts = [(features[turn][:cut], labels[turn][:cut]), (features[turn][cut:], labels[turn][cut:])]
    for kind, known in (("mean", None), ("moments", mean)):
        one, other = layout.sums(kind, [(features, labels)], known), layout.sums(kind, parts, known)  # type: ignore[arg-type]
        assert all(torch.equal(own, its) for own, its in zip(one, other, strict=True))


def test_parts_are_of_one_promise_and_noise_is_that_of_its_parts() -> None:
    layout = NoisyLayout(10, 1280, moments=True, mu=2.5)
    assert composed(layout.charge(kind) for kind in KINDS) == pytest.approx(2.5, rel=1e-12)
    honest = 6
    mean = layout.noise("mean", honest)[0] * math.sqrt(honest)
    sums, diagonal, rest = (one * math.sqrt(honest) for one in layout.noise("moments", honest))
    assert (STEPS / mean) ** 2 + (STEPS / sums) ** 2 + (STEPS**2 / diagonal) ** 2 == pytest.approx(2.5**2, rel=1e-12)
    assert diagonal / rest == pytest.approx(math.sqrt(2.0))
    alone = NoisyLayout(10, 1280, moments=False, mu=2.5)
    assert [size for size, _ in alone.shapes("moments")] == [12_800]
    assert composed(alone.charge(kind) for kind in KINDS) == pytest.approx(2.5, rel=1e-12)
    for wrong in (Division(mean=0.0), Division(mean=1.0), Division(sums=1.0), Division(sums=-0.1)):
        with pytest.raises(ValueError, match="between 0 and 1"):
            wrong.parts(1.0, 4, 9)


@pytest.mark.parametrize(("parties", "left"), [(3, 3), (5, 4), (10, 6), (100, 60)])
def test_the_noise_of_the_fewest_that_may_be_left_is_enough(parties: int, left: int) -> None:
    """All shares but those of the lost and the corrupt: the sum has the deviation that was promised."""
    honest, layout = least_honest(parties), NoisyLayout(CLASSES, 2000, moments=False, mu=0.8)
    assert honest == left
    nothing = layout.sums("mean", [], None)
    total = sum(numbers_of(layout.noisy("mean", nothing, honest, None)[0]) for _ in range(honest))
    assert float(torch.as_tensor(total).std()) == pytest.approx(STEPS / layout.parts[0], rel=0.06)


def test_a_key_gives_the_same_noise_and_others_give_others() -> None:
    layout = NoisyLayout(CLASSES, 6, moments=True, mu=1.0)
    sums = layout.sums("moments", [], torch.zeros(6, dtype=torch.float64))
    first, again = (layout.noisy("moments", sums, 3, KEY) for _ in range(2))
    assert all((one == two).all() for one, two in zip(first, again, strict=True))
    assert not (first[0] == layout.noisy("moments", sums, 3, KEY[::-1])[0]).all()
    assert not (first[0][:6] == first[1]).any()  # no array's noise is another's


def test_what_is_read_is_what_was_summed() -> None:
    """With as good as no noise: the mean, class sums and second moments of unit deviations, and their heads."""
    features, labels = drawn(1, 300, 8)
    features = features + 2 * torch.eye(CLASSES, 8, dtype=torch.float64)[labels] + 1.0
    layout = NoisyLayout(CLASSES, 8, moments=True, mu=1000.0)
    mean = layout.read_mean(layout.noisy("mean", layout.sums("mean", [(features, labels)], None), 1, KEY), 300)
    torch.testing.assert_close(mean, unit(features).mean(dim=0), rtol=0, atol=1e-3)
    summed = layout.sums("moments", [(features, labels)], mean)
    sums, moments = layout.read_moments(layout.noisy("moments", summed, 1, KEY))
    turned = deviations(features, mean)
    expected = torch.zeros(CLASSES, 8, dtype=torch.float64).index_add_(0, labels, turned)
    torch.testing.assert_close(sums, expected, rtol=0, atol=0.2)
    assert moments is not None
    torch.testing.assert_close(moments, turned.T @ turned, rtol=0, atol=0.2)
    found = NoisyStatistics(mean, sums, moments, layout.edge(1, 1), 300)
    heads = found.ncm(), found.ridge(), found.gaussian()
    assert min(float((head.predict(unit(features)) == labels).double().mean()) for head in heads) > 0.75
    with pytest.raises(ValueError, match="needs second moments"):
        NoisyStatistics(mean, sums, None, 0.0, 300).ridge()


def test_without_noise_fedcgs_has_the_within_class_scatter_of_classes_of_the_same_size() -> None:
    """By numpy, from the samples: inverse, means and half the bias, which counts for a deviation of the mean length."""
    dim, each = 6, 40
    features, _ = drawn(5, CLASSES * each, dim)
    labels = torch.arange(CLASSES).repeat(each)
    features += torch.eye(dim, dtype=torch.float64)[labels] * 2 + 0.5
    mean = unit(features).mean(dim=0)
    turned = deviations(features, mean)
    sums = torch.zeros(CLASSES, dim, dtype=torch.float64).index_add_(0, labels, turned)
    head = NoisyStatistics(mean, sums, turned.T @ turned, 1e-9, CLASSES * each).gaussian()

    z, y = turned.numpy(), labels.numpy()
    means = np.stack([z[y == one].mean(axis=0) for one in range(CLASSES)])
    apart = z - means[y]
    weight = np.linalg.solve(apart.T @ apart / len(z), means.T).T
    length = np.sqrt(np.mean(np.linalg.norm(unit(features).numpy() - mean.numpy(), axis=1) ** 2))
    bias = -(weight * means).sum(axis=1) / 4 * length - weight @ mean.numpy()
    np.testing.assert_allclose(head.weight.numpy(), weight, rtol=1e-6)
    np.testing.assert_allclose(head.bias.numpy(), bias, rtol=1e-6)


def test_the_edge_is_that_of_the_noises_eigenvalues() -> None:
    layout = NoisyLayout(2, 120, moments=True, mu=0.5)
    nothing = layout.sums("moments", [], torch.zeros(120, dtype=torch.float64))
    shares = [layout.noisy("moments", nothing, 6, bytes([one] * 32)) for one in range(9)]
    summed = [np.sum([share[place] for share in shares], axis=0, dtype=np.uint64) for place in range(3)]
    moments = layout.read_moments(summed)[1]
    assert moments is not None
    assert float(torch.linalg.eigvalsh(moments)[-1]) == pytest.approx(layout.edge(9, 6), rel=0.1)


@pytest.mark.parametrize("given_", [1, 3])
def test_noise_for_a_person_hides_all_that_one_gives(given_: int) -> None:
    """By the definition: what of both sums' losses, one array after another, is above epsilon is at most delta.

    The person's samples are alike, and longest: then all of the promise is used.
    """
    promise = Promise(2.0, 1e-3, 100, per_person=given_)
    layout, step = NoisyLayout(CLASSES, 4, moments=True, mu=promise.sample_mu), 1e-2
    features, labels = drawn(3, given_ + 5, 4)
    features[:given_], labels[:given_] = features[0].clone(), int(labels[0])
    mean, losses, density = torch.zeros(4, dtype=torch.float64), np.arange(-2000, 2001) * step, np.ones(1)
    for kind in KINDS:
        parts = (whole(layout, kind, features[start:], labels[start:], mean) for start in (0, given_))
        for own, other, deviation in zip(*parts, layout.noise(kind, 1), strict=True):
            gap = math.dist(own, other) / deviation
            loss = np.exp(-((losses - gap**2 / 2) ** 2) / (2 * gap**2)) * step / (gap * math.sqrt(2 * math.pi))
            density = np.convolve(density, loss)
            density = density[len(density) // 2 - 2000 :][:4001] if len(density) > 4001 else density
    spent = float((np.maximum(-np.expm1(promise.epsilon - losses), 0) * density).sum())
    assert 0.7 * promise.delta < spent <= promise.delta * (1 + 1e-3) and promise.to_json()["unit"] == "person"
