"""Whole networks and heads on one split: every method has its line, and networks learn what heads do."""

from collections.abc import Callable
from typing import Any

from research.benchmarks import one_shot

FEW: tuple[str, ...] = ("--clients", "3", "--alphas", "100", "--seeds", "1", "--local-epochs", "2")
FEW += ("--epochs", "2", "--batch", "8", "--width", "4")


def test_lines_and_table(measured: Callable[..., list[Any]], sixty: str) -> None:
    lines = measured(one_shot, one_shot.Scored, sixty, *FEW)

    found = {line.method: line for line in lines}
    assert list(found) == ["FedAvg, one shot", "ensemble", "DENSE", "Co-Boosting", "FedCGS"]
    assert len({found[name].num_bytes for name in list(found)[:4]}) == 1
    assert found["ensemble"].num_bytes == 4 * 3 * (29_034 - 7 * 1_569 + 2 * (16 + 32))  # and the running statistics
    table = one_shot.table(lines)
    assert table.startswith("| accuracy (%), clients | alpha 100 |") and "| DENSE, 3 |" in table
