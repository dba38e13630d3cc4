"""Honest federations of drawn features name nobody, and the table counts those that do."""

from dataclasses import replace

import pytest

from fedstats_app.settings.app_config import AppConfig
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
