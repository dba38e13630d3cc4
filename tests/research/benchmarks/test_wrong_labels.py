"""A fifth of the labels is wrong, and the lowest margins are theirs."""

import torch

from research.benchmarks.features import Features
from research.benchmarks.wrong_labels import changed, table, trial


def test_wrong_labels_have_the_lowest_margins_and_a_site_of_them_is_named() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 4
    made = torch.nn.functional.one_hot(labels, 12) + 0.2 * torch.randn(600, 12, generator=draw)
    found = trial("made up", Features(made, labels, made, labels, 4), 0, 3)
    assert found.of_k > 0.95 and found.of_first_tenth == 1.0 and (found.named, found.sites) == (3, 3)
    assert "| made up |" in table([found])


def test_a_fifth_of_the_labels_at_some_positions_changes() -> None:
    labels, among = torch.arange(100) % 5, torch.arange(40, 90)
    wrong = (changed(labels, among, 5, torch.Generator().manual_seed(1)) != labels).nonzero().flatten()
    assert len(wrong) == 10 and set(wrong.tolist()) <= set(among.tolist())
