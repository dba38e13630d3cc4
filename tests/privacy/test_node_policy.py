"""What an owner's policy allows, and that a server can tighten it only."""

import pytest
import torch

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.methods import METHODS
from fedstats_app.privacy import NodePolicy, RefusedByPolicy, says_much_about_samples
from fedstats_app.statistics import ScatterSpec, StatisticsSpec, merge_specs
from tests.support.options import configured

SCATTER = StatisticsSpec(scatter=ScatterSpec(RankRule("full")))
ROWS, GRAM = StatisticsSpec(), StatisticsSpec(gram=True)
SEVERAL = StatisticsSpec(means_per_class=3)


def allowing(*names: str) -> NodePolicy:
    return NodePolicy(allowed={name: METHODS[name].needs if name in METHODS else None for name in names})


def test_classes_are_allowed_from_the_floor_on() -> None:
    labels = torch.tensor([0] * 4 + [1] * 5 + [3] * 6)

    assert NodePolicy(5).allowed_classes(labels, 5).tolist() == [False, True, False, True, False]
    assert NodePolicy(0).allowed_classes(labels, 5).tolist() == [True, True, False, True, False]
    assert NodePolicy(9).allowed_classes(torch.empty(0, dtype=torch.int64), 2).tolist() == [False, False]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_may_ask_for_what_it_needs_alone(method: str) -> None:
    for one in configured(method):
        allowing(method).check_specification(one.specification)


@pytest.mark.parametrize(
    ("allowed", "spec", "reason"),
    [
        (("fedncm",), GRAM, r"a Gram matrix: needed by none of this node's allowed-methods \(fedncm\)"),
        (("fedncm", "fedcof"), GRAM, r"a Gram matrix: .*\(fedncm, fedcof\)"),
        (("fedncm",), SEVERAL, "several means per class"),
        (("fedncm", "fedcof", "fed3r"), SCATTER, "a factor of the scatter: needed by none"),
        (("fedroot",), GRAM, "a Gram matrix: needed by none"),
        (("fedroot",), merge_specs([SCATTER, GRAM]), "a Gram matrix: needed by none"),
        (("fed3r", "fedcgs"), SEVERAL, "several means per class"),
        ((), ROWS, r"allowed-methods \(none\)"),
    ],
)
def test_what_no_allowed_method_needs_is_refused(allowed: tuple[str, ...], spec: StatisticsSpec, reason: str) -> None:
    with pytest.raises(RefusedByPolicy, match=reason):
        allowing(*allowed).check_specification(spec)


def test_one_pass_for_all_is_refused_where_one_of_them_is_not_allowed() -> None:
    spec = merge_specs(configured(name)[-1].specification for name in METHODS)

    allowing(*METHODS).check_specification(spec)
    NodePolicy().check_specification(spec)
    with pytest.raises(RefusedByPolicy, match=r"a Gram matrix|a factor of the scatter"):
        allowing("fedncm", "fedcof").check_specification(spec)


@pytest.mark.parametrize(("num_examples", "refused"), [(0, False), (1, True), (19, True), (20, False)])
@pytest.mark.parametrize("policy", [NodePolicy(min_gram_samples=20), NodePolicy(min_gram_samples=None)])
def test_of_few_samples_no_exact_gram_matrix_leaves(policy: NodePolicy, num_examples: int, refused: bool) -> None:
    dim, exact = 10, StatisticsSpec(gram=True, fraction_bits=8)
    for spec in (ROWS, GRAM, SCATTER, SEVERAL):
        policy.check_gram(spec, num_examples, dim, expanded=False)
    for spec, expanded, name in (
        (ROWS, True, "statistics of mapped features (feature-map)"),
        (exact, False, "an exact Gram matrix"),
    ):
        if not refused:
            policy.check_gram(spec, num_examples, dim, expanded=expanded)
            continue
        with pytest.raises(RefusedByPolicy) as caught:
            policy.check_gram(spec, num_examples, dim, expanded=expanded)
        assert str(caught.value) == f"{name}: this node has too few samples for it (min-gram-samples)"


@pytest.mark.parametrize("spec", [GRAM, SCATTER])
@pytest.mark.parametrize(("num_examples", "directions"), [(9, 0), (11, 0), (12, 1), (31, 2), (39, 3), (40, 20)])
def test_directions_are_a_tenth_of_the_samples(spec: StatisticsSpec, num_examples: int, directions: int) -> None:
    whole = spec.from_features(torch.rand(num_examples, 20, dtype=torch.float64), torch.arange(num_examples) % 2, 2)
    client = NodePolicy(min_gram_samples=None).protected(spec, whole, num_examples)
    factor, complete = client.scatter_factor(), whole.scatter_factor()
    assert factor is not None and complete is not None and len(factor) == directions
    assert client.has_gram == (spec.gram and num_examples >= 40)
    assert sum(factor.energies) + factor.left_out == pytest.approx(sum(complete.energies))


def test_who_may_send_a_gram_matrix_may_do_so_for_a_factor_too() -> None:
    """Where both are needed clients send the matrix alone, and the server makes the factor of it."""
    both = merge_specs([SCATTER, GRAM])
    allowing("fed3r").check_specification(both)


def test_fewer_samples_than_twice_the_dimension_say_much() -> None:
    assert [says_much_about_samples(n, 10) for n in (0, 1, 19, 20)] == [False, True, True, False]


@pytest.mark.parametrize("name", ["min_class_count", "min_gram_samples"])
def test_negative_numbers_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 0, got -1"):
        NodePolicy(**{name: -1})
