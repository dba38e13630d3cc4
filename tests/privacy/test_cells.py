"""Rows of whole cells."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.privacy import Cells
from fedstats_app.privacy.suppression import merged


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 20))
def test_groups_are_runs_that_reach_the_floor(counts: list[int], floor: int) -> None:
    groups = merged(counts, floor)

    if sum(counts) < floor:
        assert groups == []
        return
    assert groups == sorted(groups) and set(groups) == set(range(max(groups) + 1))
    for group in set(groups):
        assert sum(count for count, one in zip(counts, groups, strict=True) if one == group) >= floor


@st.composite
def sites(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, Cells, int]:
    """Return labels, what can be read, cells, and the floor."""
    floor = draw(st.integers(1, 6))
    sizes = draw(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 12)), min_size=1, max_size=12))
    parts = [torch.full((size,), value) for value, (_, _, size) in enumerate(sizes)]
    number = torch.cat(parts)
    labels = torch.tensor([sizes[cell][0] for cell in number.tolist()])
    held_out = torch.tensor([sizes[cell][1] for cell in number.tolist()])
    readable = torch.tensor(draw(st.lists(st.booleans(), min_size=len(number), max_size=len(number))))
    return labels, readable, Cells(number, held_out, floor), floor


@given(sites(), st.integers(1, 5), st.integers(1, 12))
def test_every_combination_of_answers_is_one_of_units_above_the_floor(
    site: tuple[torch.Tensor, torch.Tensor, Cells, int], means: int, asked: int
) -> None:
    """Also between statistics of everything and of what is left of a hold-out, and whatever floor a run asks for."""
    labels, readable, cells, floor = site
    units = cells.units(labels, readable)
    for unit in set(units.tolist()) - {-1}:
        members = units == unit
        assert int((members & readable).sum()) >= floor
        assert len(labels[members].unique()) == len(cells.held_out[members].unique()) == 1
    kept = ~cells.held_out
    part = Cells(cells.number[kept], cells.held_out[kept], floor).units(labels[kept], readable[kept])
    assert torch.equal(part, units[kept])

    used = (units >= 0) & readable
    class_ids, rows = Cells.rows(labels[used], units[used], means, asked)
    assert torch.equal(class_ids, class_ids.sort().values)
    for unit in units[used].unique():
        assert len(rows[units[used] == unit].unique()) == 1
    for row, label in enumerate(class_ids.tolist()):
        assert labels[used][rows == row].unique().tolist() == [label]
        size, whole = int((rows == row).sum()), int((labels[used] == label).sum())
        assert size >= min(asked, whole)
    assert all(int((class_ids == label).sum()) <= means for label in class_ids.tolist())
