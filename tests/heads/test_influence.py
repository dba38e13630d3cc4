"""How far statistics are spread, where classes lie, and what of a comparison of heads is more than chance."""

import pytest
import torch

from fedstats_app.heads.influence import WHOLE_VOTE, Influence, Judges, basis_of, influence_of, spreads
from fedstats_app.statistics import ClientStatistics, StatisticsSpec, TriangularFactor
from tests.support.clients import DIM, NUM_CLASSES, Clients

CLIENTS = Clients(20, seed=3)
PLACES = torch.stack([CLIENTS.features[CLIENTS.labels == c].double().mean(dim=0) for c in range(NUM_CLASSES)])


def rows_of(labels: torch.Tensor) -> torch.Tensor:
    return torch.unique(labels, return_inverse=True)[1]


def client(kind: str, *, factor: float = 1.0, shift: int = 0, number: int = 5) -> ClientStatistics:
    features, labels = CLIENTS.part(number)
    features, labels = factor * features, (labels + shift) % NUM_CLASSES
    rows = StatisticsSpec().from_features(features, labels, NUM_CLASSES).rows
    if kind == "factored":
        return ClientStatistics(rows, within=TriangularFactor.of_features(features.double(), rows, rows_of(labels)))
    whole = ClientStatistics(rows, features.double().T @ features.double())
    if kind == "Gram":
        return whole
    return ClientStatistics(rows, None, whole.scatter_factor())


@pytest.mark.parametrize("kind", ["Gram", "factored", "scatter"])
def test_spreads_are_those_of_the_samples_whatever_was_sent(kind: str) -> None:
    features, labels = CLIENTS.part(5)
    rows = client(kind).rows
    own = torch.zeros(NUM_CLASSES, DIM, dtype=torch.float64)
    own[rows.class_ids] = rows.means.double()
    basis = basis_of(PLACES)
    assert torch.allclose(basis.T @ basis, torch.eye(NUM_CLASSES - 1, dtype=torch.float64))
    away, within = own - PLACES, features.double() - own[labels]
    of_rows = (rows.counts * away[rows.class_ids].square().sum(dim=1)).sum() / len(rows)
    freedom = len(labels) - len(rows)
    expected = [of_rows, within.square().sum() / freedom, (within @ basis).square().sum() / freedom]

    assert spreads(client(kind), PLACES, basis).tolist() == pytest.approx([float(one) for one in expected])


def test_a_minority_of_the_clients_cannot_move_a_place_far() -> None:
    honest = torch.randn(9, DIM, generator=torch.Generator().manual_seed(0))
    features = torch.cat([honest, torch.full((4, DIM), 1e6)])
    places = Judges(features, torch.zeros(13, dtype=torch.int64), torch.arange(13), torch.ones(13)).places(2)
    assert bool((places[0] <= honest.max(dim=0).values).all()) and bool(places[1].isnan().all())


def test_a_mean_judges_as_if_it_were_one_sample() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(1, 200, (400,), generator=generator)
    means = torch.randn(400, DIM, generator=generator, dtype=torch.float64) / counts.sqrt().unsqueeze(1) + 3.0
    labels = torch.zeros(400, dtype=torch.int64)
    made = Judges.of_means(means, counts, labels, torch.arange(400))
    assert float(made.features.mean()) == pytest.approx(3.0, abs=0.1)
    assert float(made.features.std()) == pytest.approx(1.0, abs=0.1)
    # Ten sites that send one sample of each class say little against one that has many.
    assert made.votes.tolist() == [min(count, WHOLE_VOTE) / WHOLE_VOTE for count in counts.tolist()]
    assert Judges.of_means(means[:2], torch.tensor([1, 4]), labels[:2], torch.arange(2)).votes.tolist() == [0.25, 1.0]


def test_an_influence_counts_who_changes_sides_among_those_asked() -> None:
    labels = torch.tensor([0] * 10 + [1] * 10)
    before, after, asked = torch.zeros(20).bool(), torch.zeros(20).bool(), torch.ones(20, dtype=torch.float64)
    before[10:12] = True  # lost
    after[:7] = True  # won
    asked[19] = 0.0
    found = influence_of(before, after, asked, labels, 2)
    assert (found.gain, found.class_gain, found.worst_class) == (5 / 19, 0.7, 0)
    assert found.chance == pytest.approx(min(2 * 0.5**7, 46 / 2**9))
    assert influence_of(before, after, 0.0 * asked, labels, 2) == Influence()
    half = influence_of(before, after, 0.5 * asked, labels, 2)
    assert half.gain == found.gain and half.chance > found.chance


@pytest.mark.parametrize(
    ("influence", "large"),
    [
        (Influence(0.031, chance=1e-5), True),
        (Influence(0.029, chance=1e-5), False),
        (Influence(0.25, chance=0.25), False),
        (Influence(0.031, chance=2e-4), False),  # of 100 that were measured one is so by chance
        (Influence(0.01, 0.6, 3, chance=1e-5), True),
        (Influence(0.01, 0.4, 3, chance=1e-5), False),
    ],
)
def test_what_counts_as_large(influence: Influence, large: bool) -> None:
    assert influence.is_large(100) == large
