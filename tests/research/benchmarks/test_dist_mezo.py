"""The benchmark of what seeds save prints its table."""

import re

import pytest

from research.benchmarks.dist_mezo import main

_SETTINGS = "dataset=builtin backbone=random:tiny feature-cache=off input-size=8 samples-per-class=12"


def test_the_table_says_that_both_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    main([_SETTINGS, "--clients", "3", "--rounds", "4"])
    printed = capsys.readouterr().out
    seeds, model = re.findall(r"\| (?:seeds|model) \| (\S+) \| (\S+) \| (\S+) \|", printed)
    assert seeds[0] == model[0] and seeds[2] == model[2]
    assert float(model[1].replace(",", "")) > 10 * float(seeds[1])
    assert "The two models are the same bits." in printed
