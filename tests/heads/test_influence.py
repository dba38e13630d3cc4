"""Leaving a client out equals never having had it, and who harms is told from who is large."""

from __future__ import annotations

import pytest
import torch

from fedstats_app.heads import solve_ncm
from fedstats_app.heads.influence import Influence, Judges, LeaveOneOut
from fedstats_app.statistics import ClassMeanRows
from tests.support.clients import DIM, NUM_CLASSES, Clients

CLIENTS = Clients(20, seed=3)
ROWS = {client: ClassMeanRows.from_features(*CLIENTS.part(client), NUM_CLASSES) for client in range(20)}


def judges(owners: torch.Tensor) -> Judges:
    return Judges(CLIENTS.features, CLIENTS.labels, owners)


def totals(rows: dict[int, ClassMeanRows]) -> tuple[torch.Tensor, torch.Tensor]:
    summed = ClassMeanRows.concatenate(rows.values()).summed()
    return summed.class_counts, summed.class_sums


@pytest.mark.parametrize("own", [True, False], ids=["clients judge", "the server judges"])
def test_it_equals_solving_without_the_client(own: bool) -> None:
    owners = CLIENTS.owner if own else torch.full_like(CLIENTS.owner, -1)
    left = LeaveOneOut(*totals(ROWS), judges(owners))
    everyone = solve_ncm(ClassMeanRows.concatenate(ROWS.values()).summed())

    for client, rows in ROWS.items():
        without = solve_ncm(ClassMeanRows.concatenate(one for k, one in ROWS.items() if k != client).summed())
        asked = (owners != client) & without.present[CLIENTS.labels]
        correct = [(head.predict(CLIENTS.features) == CLIENTS.labels)[asked].double() for head in (without, everyone)]
        influence = left.influence(client, rows)
        assert influence.gain == pytest.approx(float((correct[0] - correct[1]).mean()))
        assert influence.num_gained == int((correct[0] - correct[1]).sum())


def test_removed_for_good_is_as_if_it_had_never_been_there() -> None:
    few = {client: rows for client, rows in ROWS.items() if client != 2}
    removed, never = LeaveOneOut(*totals(ROWS), judges(CLIENTS.owner)), LeaveOneOut(*totals(few), judges(CLIENTS.owner))
    removed.remove(ROWS[2])

    assert [removed.influence(k, few[k]) for k in few] == [never.influence(k, few[k]) for k in few]


def test_swapped_classes_harm_and_a_large_client_does_not() -> None:
    hostile = ClassMeanRows(
        torch.arange(NUM_CLASSES),
        torch.full((NUM_CLASSES,), 1000),
        totals(ROWS)[1].roll(1, 0) / totals(ROWS)[0].roll(1).unsqueeze(1),
        NUM_CLASSES,
    )
    large = ClassMeanRows.from_features(CLIENTS.features.repeat(5, 1), CLIENTS.labels.repeat(5), NUM_CLASSES)
    found = {}
    for name, rows in (("hostile", hostile), ("large", large)):
        left = LeaveOneOut(*totals({**ROWS, 99: rows}), judges(CLIENTS.owner))
        found[name] = left.influence(99, rows)
        assert not any(left.influence(client, ROWS[client]).is_large for client in ROWS)

    assert found["hostile"].is_large and found["hostile"].gain > 0.5 and found["hostile"].class_gain > 0.5
    assert not found["large"].is_large


def test_nobody_judges_itself_and_a_class_of_one_client_alone_judges_nothing() -> None:
    one = ClassMeanRows(torch.tensor([0]), torch.tensor([3]), torch.ones(1, DIM), NUM_CLASSES)
    left = LeaveOneOut(
        *totals({0: one}), Judges(torch.ones(2, DIM), torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1]))
    )

    assert left.influence(0, one) == Influence()


@pytest.mark.parametrize(
    ("influence", "large"),
    [
        (Influence(0.031, 31), True),
        (Influence(0.029, 29), False),
        (Influence(0.25, 2), False),
        (Influence(0.01, 9, 0.6, 3), True),
        (Influence(0.01, 9, 0.4, 3), False),
    ],
)
def test_what_counts_as_large(influence: Influence, large: bool) -> None:
    assert influence.is_large == large
