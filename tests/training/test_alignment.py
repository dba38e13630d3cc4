from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.training.local import alignment_loss, check_alignment, class_mean_sum, mean_square
from tests.support.golden import load, tensor

ALL = torch.ones(4, dtype=torch.bool)


def golden() -> tuple[Tensor, Tensor, Tensor]:
    arrays = load("features")
    return tensor(arrays["reg_f"]), tensor(arrays["reg_y"]), tensor(arrays["reg_proto"])


def test_both_forms_are_the_golden_ones() -> None:
    arrays = load("features")
    assert float(class_mean_sum(*golden(), ALL)) == pytest.approx(float(arrays["reg_eq12"]), rel=1e-12)
    assert float(mean_square(*golden(), ALL)) == pytest.approx(float(arrays["reg_mse"]), rel=1e-12)
    # The mean over samples of the squared distance, which is neither: D times the one.
    assert float(mean_square(*golden(), ALL)) * 4 == pytest.approx(float(arrays["reg_mean_sq"]), rel=1e-12)


@given(st.integers(0, 2**31), st.integers(0, 12))
def test_samples_without_a_prototype_count_as_if_they_were_not_there(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    features, labels = torch.from_numpy(rng.normal(size=(n, 3))), torch.from_numpy(rng.integers(0, 4, n))
    prototypes, present = torch.from_numpy(rng.normal(size=(4, 3))), torch.from_numpy(rng.random(4) < 0.5)
    prototypes[~present] = torch.nan
    counted = present[labels]
    by_class = [(features[labels == c] - prototypes[c]).square().sum(1).mean() for c in set(labels[counted].tolist())]
    squares = (features[counted] - prototypes[labels[counted]]).square()
    assert float(class_mean_sum(features, labels, prototypes, present)) == pytest.approx(float(sum(by_class)))
    expected = float(squares.mean()) if len(squares) else 0.0
    assert float(mean_square(features, labels, prototypes, present)) == pytest.approx(expected)


@pytest.mark.parametrize(("form", "function"), [("class-mean-sum", class_mean_sum), ("mean-square", mean_square)])
def test_the_loss_is_weighted_and_pulls_features_to_their_prototype(
    form: str, function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
) -> None:
    features, labels, prototypes = golden()
    features = features.float().requires_grad_()
    loss = alignment_loss(form, prototypes, ALL, 0.5)(features, labels)
    assert loss.dtype == torch.float32
    expected = 0.5 * float(function(features.detach().double(), labels, prototypes, ALL))
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, features)
    direction = features.detach() - prototypes[labels].float()
    assert torch.allclose(torch.cosine_similarity(gradient, direction), torch.ones(len(labels)))


@pytest.mark.parametrize("form", ["class-mean-sum", "mean-square"])
def test_a_batch_without_prototypes_costs_nothing_and_has_no_gradient(form: str) -> None:
    features, labels, prototypes = golden()
    features.requires_grad_()
    loss = alignment_loss(form, prototypes, ~ALL, 1.0)(features, labels)
    loss.backward()
    assert float(loss.detach()) == 0.0 and features.grad is not None and not features.grad.any()


@pytest.mark.parametrize(
    ("form", "prototypes", "weight", "message"),
    [
        ("mse", torch.zeros(4, 2), 1.0, "class-mean-sum, mean-square, got 'mse'"),
        ("mean-square", torch.zeros(3, 2), 1.0, r"present must be \(3\) bool, got \(4,\)"),
        ("mean-square", torch.full((4, 2), torch.nan), 1.0, "must be finite"),
        ("mean-square", torch.zeros(4, 2), -1.0, "weight must be at least 0 .* got -1.0"),
    ],
)
def test_what_does_not_fit_is_refused(form: str, prototypes: Tensor, weight: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_alignment(form, prototypes, ALL, weight)
