"""Who of a group of suspects is named in the end."""

from typing import cast

from fedstats_app.heads.influence import Influence
from fedstats_app.server.influence import _cleared, _instead, _Trials


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
