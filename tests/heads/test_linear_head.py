from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.heads import LinearHead, SolveReport
from fedstats_app.heads.linear_head import normalize_rows

HEAD = LinearHead(
    torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]),
    torch.tensor([0.0, 0.0, -0.5]),
    torch.tensor([True, False, True]),
)


def test_logits_are_a_linear_map() -> None:
    logits = HEAD.logits(torch.tensor([[2.0, 1.0]]), mask_absent=False)
    assert logits.tolist() == [[2.0, 0.0, -1.5]]


def test_an_absent_class_never_wins_unless_asked_for() -> None:
    negative = torch.tensor([[-1.0, -3.0]])  # both classes present have negative logits
    assert HEAD.logits(negative).tolist() == [[-1.0, -torch.inf, -2.5]]
    assert HEAD.predict(negative).tolist() == [0]
    assert HEAD.predict(negative, mask_absent=False).tolist() == [1]


def test_all_classes_are_present_by_default() -> None:
    head = LinearHead(torch.ones(2, 3), torch.zeros(2))
    assert head.present.tolist() == [True, True] and head.report == SolveReport()
    assert (head.num_classes, head.feature_dim) == (2, 3)


def test_features_of_another_precision_are_taken_in_the_heads() -> None:
    head = HEAD.to(dtype=torch.float64)
    assert head.weight.dtype == head.bias.dtype == torch.float64
    assert head.present.dtype == torch.bool and head.report is HEAD.report
    assert head.logits(torch.ones(1, 2, dtype=torch.float16)).dtype == torch.float64


def test_a_head_on_no_features_predicts_nothing() -> None:
    assert HEAD.predict(torch.zeros(0, 2)).shape == (0,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearHead(torch.ones(3), torch.ones(3)), r"weight must be \(any, any\) float32, got \(3,\)"),
        (lambda: LinearHead(torch.ones(3, 2), torch.ones(2)), r"bias must be \(3\) float32, got \(2,\)"),
        (lambda: LinearHead(torch.ones(3, 2), torch.ones(3), torch.ones(2) > 0), r"must be \(3\) bool, got \(2,\)"),
        (lambda: LinearHead(torch.full((1, 2), torch.nan), torch.ones(1)), r"a head must be finite"),
        (lambda: LinearHead(torch.ones(1, 2), torch.tensor([torch.inf])), r"a head must be finite"),
        (lambda: HEAD.predict(torch.ones(4, 3)), r"features must be \(any, 2\) float32, got \(4, 3\)"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@given(exponent=st.integers(-150, 150), seed=st.integers(0, 2**32 - 1))
def test_rows_of_any_size_become_unit_rows(exponent: int, seed: int) -> None:
    weight = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weight[1] = 0.0
    unit, norm = normalize_rows(weight * 10.0**exponent)
    assert unit[1].tolist() == [0.0] * 5 and norm[1] == 1.0
    assert torch.linalg.vector_norm(unit[[0, 2]], dim=1).tolist() == pytest.approx([1.0, 1.0], rel=1e-12)
    assert norm[0] == pytest.approx(float(torch.linalg.vector_norm(weight[0])) * 10.0**exponent, rel=1e-12)
