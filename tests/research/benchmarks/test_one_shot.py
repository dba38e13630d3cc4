"""Whole networks and heads on one split: every method has its line, and networks learn what heads do."""

from collections.abc import Callable
from typing import Any

import torch

from fedstats_app.data.clients import training_set
from research.benchmarks import one_shot
from research.benchmarks.features import config_of

FEW: tuple[str, ...] = ("--clients", "3", "--alphas", "100", "--seeds", "1", "--local-epochs", "2")
FEW += ("--epochs", "2", "--batch", "8", "--width", "4")


def test_clients_train_the_experiments_own_network_on_its_colours(
    measured: Callable[..., list[Any]], sixty: str
) -> None:
    lines = measured(one_shot, one_shot.Scored, f"{sixty} partitioner=iid", *FEW, "--network", "own", "--epochs", "1")
    numbers = 16 * (27 + 1) + 32 * (9 * 16 + 1) + 3 * (32 + 1)
    assert {line.num_bytes for line in lines if line.method != "FedCGS"} == {4 * 3 * numbers}


def test_images_have_the_networks_colours_and_size(sixty: str) -> None:
    config = config_of(sixty)
    images, labels = one_shot.images_of(training_set(config.data), 3, 8)
    assert images.shape == (45, 3, 8, 8) and torch.equal(images[:, 0], images[:, 2])
    assert torch.allclose(images[labels == 2].mean(), torch.tensor(2 * 163 / 255 - 1), atol=0.02)


def test_lines_and_table(measured: Callable[..., list[Any]], sixty: str) -> None:
    lines = measured(one_shot, one_shot.Scored, sixty, *FEW)

    found = {line.method: line for line in lines}
    assert list(found) == ["FedAvg, one shot", "ensemble", "DENSE", "Co-Boosting", "FedCGS"]
    assert len({found[name].num_bytes for name in list(found)[:4]}) == 1
    assert found["ensemble"].num_bytes == 4 * 3 * (29_034 - 7 * 1_569 + 2 * (16 + 32))  # and the running statistics
    table = one_shot.table(lines)
    assert table.startswith("| accuracy (%), clients | alpha 100 |") and "| DENSE, 3 |" in table
