"""Whole networks and heads on one split: every method has its line, and networks learn what heads do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from research.benchmarks import one_shot


def test_lines_and_table(measured: Callable[..., list[Any]], tmp_path: Path) -> None:
    for place in range(60):
        file = tmp_path / "data" / ("train", "test")[place % 4 == 0] / f"class{place % 3}" / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (28, 28), 80 * (place % 3) + place % 7).save(file)
    experiment = f"dataset='folder:{tmp_path}/data' backbone=random:tiny feature-cache=off input-size=8"
    few = ("--clients", "3", "--alphas", "100", "--seeds", "1", "--local-epochs", "2")
    lines = measured(one_shot, one_shot.Scored, experiment, *few, "--epochs", "2", "--batch", "8", "--width", "4")

    found = {line.method: line for line in lines}
    assert list(found) == ["FedAvg, one shot", "ensemble", "DENSE", "Co-Boosting", "FedCGS"]
    assert len({found[name].num_bytes for name in list(found)[:4]}) == 1
    assert found["ensemble"].num_bytes == 4 * 3 * (29_034 - 7 * 1_569 + 2 * (16 + 32))  # and the running statistics
    table = one_shot.table(lines)
    assert table.startswith("| accuracy (%), clients | alpha 100 |") and "| DENSE, 3 |" in table
