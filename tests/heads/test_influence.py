"""Leaving a client out equals never having had it, and who harms is told from who is large."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fedstats_app.heads import influence as heads_influence
from fedstats_app.heads import solve_ncm, solve_ridge
from fedstats_app.heads.influence import Influence, Judges, LeaveOneOutOfGram, LeaveOneOutOfMeans, energy, second_moment
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, FeatureStatistics, GramFactor
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
    left = LeaveOneOutOfMeans(*totals(ROWS), judges(owners))
    everyone = solve_ncm(ClassMeanRows.concatenate(ROWS.values()).summed())

    for client, rows in ROWS.items():
        without = solve_ncm(ClassMeanRows.concatenate(one for k, one in ROWS.items() if k != client).summed())
        asked = (owners != client) & without.present[CLIENTS.labels]
        correct = [(head.predict(CLIENTS.features) == CLIENTS.labels)[asked].double() for head in (without, everyone)]
        influence = left.influence(client, ClientStatistics(rows))
        assert influence.gain == pytest.approx(float((correct[0] - correct[1]).mean()))
        assert influence.num_gained == int((correct[0] - correct[1]).sum())


@pytest.mark.parametrize("together", [1, 7, 1000])
def test_clients_together_are_as_each_by_itself(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_influence, "ROWS_TOGETHER", together)
    left = LeaveOneOutOfMeans(*totals(ROWS), judges(CLIENTS.owner))
    nobody = ClassMeanRows.zeros(NUM_CLASSES, DIM, dtype=torch.float32)
    clients = {**ROWS, 99: nobody}
    found = dict(left.influences((client, ClientStatistics(rows)) for client, rows in clients.items()))
    assert list(found) == list(clients) and found[99] == Influence()
    assert found == {client: left.influence(client, ClientStatistics(rows)) for client, rows in clients.items()}
    assert len({influence.num_gained for influence in found.values()}) > 1


def test_only_so_many_rows_wait_however_few_their_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_influence, "ROWS_TOGETHER", 30)
    left, taken = LeaveOneOutOfMeans(*totals(ROWS), judges(CLIENTS.owner)), 0

    def clients() -> Iterator[tuple[int, ClientStatistics]]:
        nonlocal taken
        for place in range(9):
            taken += 1
            rows = ClassMeanRows(
                torch.zeros(10, dtype=torch.int64),
                torch.ones(10, dtype=torch.int64),
                num_classes=NUM_CLASSES,
                class_sums=torch.ones(10, DIM),
            )
            yield place, ClientStatistics(rows)

    for place, _ in left.influences(clients()):
        assert taken == 3 * (place // 3 + 1)


def test_removed_for_good_is_as_if_it_had_never_been_there() -> None:
    few = {client: rows for client, rows in ROWS.items() if client != 2}
    removed, never = (LeaveOneOutOfMeans(*totals(rows), judges(CLIENTS.owner)) for rows in (ROWS, few))
    removed.remove(ClientStatistics(ROWS[2]))

    for client, rows in few.items():
        one = ClientStatistics(rows)
        assert removed.influence(client, one) == never.influence(client, one)


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
        left = LeaveOneOutOfMeans(*totals({**ROWS, 99: rows}), judges(CLIENTS.owner))
        found[name] = left.influence(99, ClientStatistics(rows))
        assert left.contradicts(ClientStatistics(rows)) == (name == "hostile")
        assert not any(
            left.influence(client, ClientStatistics(ROWS[client])).is_large(len(ROWS) + 1) for client in ROWS
        )

    assert (
        found["hostile"].is_large(len(ROWS) + 1) and found["hostile"].gain > 0.5 and found["hostile"].class_gain > 0.5
    )
    assert not found["large"].is_large(len(ROWS) + 1)


def with_scatter(rank: int | None) -> dict[int, ClientStatistics]:
    """Return every client with its Gram matrix, or with a factor of its scatter of this rank."""
    found = {}
    for client, rows in ROWS.items():
        features, _ = CLIENTS.part(client)
        whole = ClientStatistics(rows, features.double().T @ features.double())
        factor = whole.scatter_factor()
        assert factor is not None
        found[client] = whole if rank is None else ClientStatistics(rows, None, factor.truncated(rank, torch.float32))
    return found


def total(clients: dict[int, ClientStatistics]) -> FeatureStatistics:
    gram = torch.stack([second_moment(client) for client in clients.values()]).sum(dim=0)
    return ClassMeanRows.concatenate(client.rows for client in clients.values()).summed(gram)


@pytest.mark.parametrize("rank", [None, 2], ids=["Gram matrices", "factors"])
def test_of_gram_matrices_it_equals_solving_without_the_client(rank: int | None) -> None:
    clients = with_scatter(rank)
    left = LeaveOneOutOfGram(total(clients), 3.0, judges(CLIENTS.owner))
    everyone = solve_ridge(total(clients), ridge_lambda=3.0)

    for client in clients:
        others = total({k: one for k, one in clients.items() if k != client})
        without = solve_ridge(others, ridge_lambda=3.0)
        asked = (CLIENTS.owner != client) & without.present[CLIENTS.labels]
        correct = [(head.predict(CLIENTS.features) == CLIENTS.labels)[asked].double() for head in (without, everyone)]
        assert left.influence(client, clients[client]).gain == pytest.approx(float((correct[0] - correct[1]).mean()))


def test_a_gram_matrix_that_hides_what_tells_classes_apart_harms_and_a_removed_one_no_longer_does() -> None:
    clients = with_scatter(None)
    spread = total(clients).class_sums
    directions = torch.linalg.qr((spread - spread.mean(dim=0)).T)[0][:, : NUM_CLASSES - 1]
    own = clients[4]
    clients[4] = ClientStatistics(own.rows, second_moment(own) + 1e4 * directions @ directions.T)
    means = LeaveOneOutOfMeans(*totals(ROWS), judges(CLIENTS.owner))
    left = LeaveOneOutOfGram(total(clients), 3.0, judges(CLIENTS.owner))

    assert not any(means.influence(k, clients[k]).is_large(len(ROWS) + 1) for k in clients)
    assert max(clients, key=lambda k: left.influence(k, clients[k]).gain) == 4
    assert left.influence(4, clients[4]).is_large(len(ROWS) + 1)
    assert not left.contradicts(clients[4]), "its class means are honest: the sentence does not accuse it"
    left.remove(clients[4])
    assert not any(left.influence(k, clients[k]).is_large(len(ROWS) + 1) for k in clients if k != 4)


@pytest.mark.parametrize("rank", [None, 2], ids=["Gram matrices", "factors"])
def test_the_energy_is_the_trace_of_the_second_moment(rank: int | None) -> None:
    for client in with_scatter(rank).values():
        assert energy(client) == pytest.approx(float(second_moment(client).trace()))
    factored = ClientStatistics(ROWS[0], GramFactor.of(CLIENTS.part(0)[0].double()))
    assert energy(factored) == pytest.approx(float(second_moment(factored).trace()))


def test_what_sent_rows_only_has_no_second_moment() -> None:
    assert energy(ClientStatistics(ROWS[0])) == 0.0
    with pytest.raises(ValueError, match="got neither"):
        second_moment(ClientStatistics(ROWS[0]))


def test_nobody_judges_itself_and_a_class_of_one_client_alone_judges_nothing() -> None:
    one = ClassMeanRows(torch.tensor([0]), torch.tensor([3]), torch.ones(1, DIM), NUM_CLASSES)
    left = LeaveOneOutOfMeans(
        *totals({0: one}), Judges(torch.ones(2, DIM), torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1]))
    )

    assert left.influence(0, ClientStatistics(one)) == Influence()


@pytest.mark.parametrize(
    ("influence", "large"),
    [
        (Influence(0.031, 31, chance=1e-5), True),
        (Influence(0.029, 29, chance=1e-5), False),
        (Influence(0.25, 2, chance=0.25), False),
        (Influence(0.031, 31, chance=2e-4), False),  # of 100 that were measured one is so by chance
        (Influence(0.01, 9, 0.6, 3, chance=1e-5), True),
        (Influence(0.01, 9, 0.4, 3, chance=1e-5), False),
    ],
)
def test_what_counts_as_large(influence: Influence, large: bool) -> None:
    assert influence.is_large(100) == large


@pytest.mark.parametrize("held", [1, 5, 31, 40], ids="{} classes a client".format)
def test_with_many_classes_and_equal_scores_the_first_best_class_counts(held: int) -> None:
    draw = torch.Generator().manual_seed(held)
    num_classes, dim, owned = 50, 4, 300
    # Means of few directions: many scores are equal.
    means = torch.randint(-1, 2, (num_classes, dim), generator=draw).double()
    means[(means == 0).all(dim=1)] = 1.0
    clients = {}
    for client in range(6):
        ids = torch.randperm(num_classes, generator=draw)[:held].sort().values
        counts = torch.randint(1, 9, (held,), generator=draw)
        clients[client] = ClassMeanRows(ids, counts, means[ids], num_classes)
    total = ClassMeanRows.concatenate(clients.values()).summed()
    features = torch.randint(-1, 2, (owned, dim), generator=draw).float()
    labels = torch.randint(num_classes, (owned,), generator=draw)
    left = LeaveOneOutOfMeans(total.class_counts, total.class_sums, Judges(features, labels, torch.full((owned,), -1)))

    def right(counts: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        unit = torch.nn.functional.normalize(sums / counts.clamp(min=1).unsqueeze(1), dim=1).float()
        scores = torch.where(counts > 0, features @ unit.T, -torch.inf)
        return (scores.argmax(dim=1) == labels).long()

    for client, rows in clients.items():
        own = rows.summed()
        counts, sums = total.class_counts - own.class_counts, total.class_sums - own.class_sums
        asked = (counts > 0)[labels]
        gained = (right(counts, sums) - right(total.class_counts, total.class_sums))[asked].sum()
        assert left.influence(client, ClientStatistics(rows)).num_gained == int(gained)
