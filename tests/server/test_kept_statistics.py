"""What is kept of every client comes back bit for bit, in order, and no more than there is room for."""

import pytest
import torch

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.server.client_notes import KeptStatistics
from fedstats_app.statistics import ClientStatistics, ScatterSpec, StatisticsSpec
from tests.support.compare import same_bits
from tests.wire.messages import FEW, NUM_CLASSES, NUM_SAMPLES, features_and_labels

SPECS = {
    "rows": StatisticsSpec(means_per_class=3),
    "gram": StatisticsSpec(gram=True),
    "factor": StatisticsSpec(scatter=ScatterSpec(RankRule.parse("2"), "float16")),
}


def statistics(kind: str, seed: int, n: int = NUM_SAMPLES) -> ClientStatistics:
    return SPECS[kind].from_features(*features_and_labels(seed, n), NUM_CLASSES)


def contents(one: ClientStatistics) -> list[torch.Tensor]:
    scatter = one.scatter
    factor = [] if scatter is None else [scatter.values, scatter.directions, torch.tensor(scatter.left_out)]
    gram = [] if one.gram is None else [one.gram]
    return [one.rows.class_ids, one.rows.counts, one.rows.class_sums, *gram, *factor]


@pytest.mark.parametrize("n", [NUM_SAMPLES, FEW, 0])
def test_clients_come_back_bit_for_bit_as_often_as_they_are_asked_for(n: int) -> None:
    kept = KeptStatistics(NUM_CLASSES)
    given = {client: statistics(kind, client, n) for client, kind in enumerate(SPECS)}
    assert all(kept.add(client, one) for client, one in given.items())
    for _ in range(2):
        found = dict(kept)
        assert list(found) == list(given)
        for one, after in zip(given.values(), found.values(), strict=True):
            assert all(map(same_bits, contents(one), contents(after))) and type(one.within) is type(after.within)


def test_no_more_than_there_is_room_for() -> None:
    kept = KeptStatistics(NUM_CLASSES, max_bytes=2000)
    room = [kept.add(client, statistics("gram", 0)) for client in range(10)]
    number = len(list(kept))
    assert 1 <= number < 10 and room == [True] * number + [False] * (10 - number)
