"""Sets of classes that hold the right one with a promised chance."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.heads import MarginHistograms, margin_bins
from fedstats_app.heads.coverage import LabelMargins

C = 4


def draw(n: int, seed: int, noise: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores in which the right class is one larger, up to noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, C, (n,), generator=generator)
    scores = noise * torch.randn(n, C, dtype=torch.float64, generator=generator)
    return scores + torch.nn.functional.one_hot(labels, C), labels


def margins_of(logits: torch.Tensor, labels: torch.Tensor) -> LabelMargins:
    found = MarginHistograms.zeros(C).count_(margin_bins(logits), labels).positives
    return LabelMargins(found.sum(dim=0), found, "made samples")


@given(st.integers(12, 60), st.integers(0, 99), st.sampled_from([0.5, 0.8, 0.9]))
def test_the_bound_is_the_kth_smallest_margin(n: int, seed: int, coverage: float) -> None:
    """Brute force: sort the margins of the right classes."""
    logits, labels = draw(n, seed)
    margins = margins_of(logits, labels)
    k = math.floor((n + 1) * (1 - coverage) + 1e-9)
    own = margin_bins(logits).gather(1, labels.unsqueeze(1)).flatten().sort().values.tolist()

    if k < 1:
        with pytest.raises(ValueError, match="which made samples can promise"):
            margins.lowest_bins(coverage)
        return
    lowest = margins.lowest_bins(coverage)
    few = torch.bincount(labels, minlength=C) + 1 < 5 / (1 - coverage)
    assert lowest[few].tolist() == [own[k - 1]] * int(few.sum())
    for label in (~few).nonzero().flatten().tolist():
        of_class = sorted(margin_bins(logits)[labels == label, label].tolist())
        assert int(lowest[label]) == of_class[math.floor((len(of_class) + 1) * (1 - coverage) + 1e-9) - 1]


@pytest.mark.parametrize("coverage", [0.7, 0.9])
@pytest.mark.parametrize("n", [39, 400])
def test_new_samples_are_covered_as_promised(n: int, coverage: float) -> None:
    """Over 300 draws; not by much more either."""
    covered = []
    for seed in range(300):
        logits, labels = draw(50, 1000 + seed)
        chosen = margins_of(*draw(n, seed)).sets(logits, coverage)
        covered.append(float(chosen.gather(1, labels.unsqueeze(1)).double().mean()))
    mean = sum(covered) / len(covered)
    assert coverage - 0.01 <= mean <= coverage + 0.05


def test_one_class_that_is_harder_is_covered_too() -> None:
    """A bound of all classes would leave out half of its samples."""

    def hard(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits, labels = draw(n, seed, 0.2)
        logits[labels == 0, 0] -= torch.rand(int((labels == 0).sum()), generator=torch.Generator().manual_seed(seed))
        return logits, labels

    logits, labels = hard(4000, 1)
    chosen = margins_of(*hard(4000, 0)).sets(logits, 0.9)
    shares = [float(chosen[labels == label, label].double().mean()) for label in range(C)]
    assert abs(shares[0] - 0.9) < 0.03 and min(shares) > 0.87


def test_the_likeliest_class_is_always_named_and_an_absent_one_never() -> None:
    logits, labels = draw(400, 0)
    margins = margins_of(logits, labels)
    logits[:, 3] = -torch.inf
    chosen = margins.sets(logits, 0.05)
    assert bool((chosen.sum(dim=1) == 1).all()) and bool(chosen.gather(1, logits.argmax(dim=1, keepdim=True)).all())
    assert not margins.sets(logits, 0.99)[:, 3].any()


def test_margins_travel_as_text() -> None:
    margins = margins_of(*draw(400, 0))
    found = LabelMargins.from_json(margins.to_json(), C)
    assert torch.equal(found.pooled, margins.pooled) and found.samples == "made samples"
    assert torch.equal(found.by_class, margins.by_class)
    for text in ("", "[]", '{"pooled": [[-1, 2]], "classes": {}, "samples": ""}', '{"pooled": [[9999, 2]]}'):
        with pytest.raises(ValueError, match="label-margins"):
            LabelMargins.from_json(text, C)


@pytest.mark.parametrize("coverage", [0.0, 1.0, -1.0, 0.99])
def test_a_promise_that_cannot_be_kept_is_refused(coverage: float) -> None:
    with pytest.raises(ValueError, match=r"above 0 and at most 0\.96"):
        margins_of(*draw(24, 0)).lowest_bins(coverage)
