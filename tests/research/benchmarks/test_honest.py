"""Honest federations of drawn features name nobody, and the table counts those that do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedstats_app.server import influence
from fedstats_app.settings.app_config import AppConfig
from research.benchmarks.features import Features
from research.benchmarks.honest import SPLITS, federation, table
from tests.research.benchmarks.test_attacks import DATA

CONFIG = AppConfig.of(method="fedncm,fedcof,fedcgs")


@pytest.mark.parametrize("variant", ["10", "tail", "noise"])
@pytest.mark.parametrize("split", SPLITS)
def test_nobody_honest_is_named(split: str, variant: str) -> None:
    found = federation(DATA, CONFIG, variant, split, 10, 0)

    assert tuple(found.named) == tuple(found.named_by_test) == ()
    assert table([found]).splitlines()[-1] == f"| {variant} | {split} | 1 | 0 | 0 |  |"
    accused = replace(found, experiment="drawn", named=(3,), named_by_test=(3, 4))
    assert table([found, accused]).splitlines()[-1] == (
        f"| {variant} | {split} | 2 | 1 | 1 | drawn, 10 clients, seed 0: [3] [3, 4] |"
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_a_head_that_fits_those_better_who_are_left_accuses_nobody(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly each of ten clients costs the others 3 to 7 points: the head was solved on the judges' own samples."""
    monkeypatch.setattr(influence, "SUSPICIOUS", 1.5)
    draw = torch.Generator().manual_seed(seed)
    means = torch.randn(60, 48, generator=draw)

    def drawn(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(60).repeat(number)
        return (means[labels] + 3.0 * torch.randn(len(labels), 48, generator=draw)).relu(), labels

    many = Features(*drawn(30), *drawn(4), 60)
    assert (
        tuple(federation(many, AppConfig.of(method="fed3r,fedcof,fedroot"), "full", "dirichlet", 10, seed).named) == ()
    )
