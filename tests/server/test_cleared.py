"""Who of a group of suspects is named in the end."""

from typing import cast

import pytest
import torch

from fedstats_app.heads.influence import Influence, Judges
from fedstats_app.methods import Method
from fedstats_app.server.influence import _cleared, _instead, _Trials
from fedstats_app.strategies import FedCOF
from tests.support.clients import NUM_CLASSES, Clients


class Trials:
    """Clients 0 and 1 are hostile; without client 2 the others' heads are so weak that client 3 seems to cost some."""

    def influences(self, group: tuple[int, ...], *, than: tuple[int, ...]) -> dict[str, Influence]:
        back = set(group) - set(than)
        gain = 0.1 * len(back & {0, 1}) + 0.037 * (3 in back and 2 not in back)
        return {"fedcof": Influence(gain, chance=1e-4 if gain else 1.0)}


def test_an_honest_client_that_seems_to_cost_something_without_others_is_cleared_when_they_are_back() -> None:
    assert _cleared((0, 1, 2, 3), cast("_Trials", Trials()), ()) == (0, 1)
    assert _cleared((3, 1, 2, 0), cast("_Trials", Trials()), ()) == (1, 0)


def test_a_group_is_compared_with_as_many_peers_each_time_others() -> None:
    assert [*_instead((7, 8), (), (1, 2, 3, 4, 5))] == [(1, 2), (2, 3), (3, 4)]
    assert [*_instead((7, 8), (8,), (1, 2))] == [(8, 1), (8, 2)]
    assert [*_instead((7, 8), (), (1,))] == [*_instead((7,), (), ())] == []


def test_heads_are_solved_again_only_if_judges_are_classified_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients()
    strategy = FedCOF(NUM_CLASSES)
    strategy.start(clients.client_grid())
    sent = {client: (client, strategy.request.statistics(*clients.part(client))) for client in range(2)}
    predicted = strategy.head.predict(clients.features)
    judges = Judges(clients.features, predicted, torch.full_like(predicted, -1), torch.ones(len(predicted)))

    def solve(*given: object) -> None:
        raise AssertionError("solved again")

    monkeypatch.setattr(Method, "head", solve)
    assert not _Trials(strategy, judges, sent).any_won((0, 1))
    judges.labels[:] = (predicted + 1) % NUM_CLASSES
    with pytest.raises(AssertionError, match="solved again"):
        _Trials(strategy, judges, sent).any_won((0, 1))
