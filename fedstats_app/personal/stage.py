"""What all ways to personal models share: the clients, the start, and how everybody trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedstats_app.config import AppConfig
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.heads import LinearHead
from fedstats_app.methods import PERSONAL_METHODS
from fedstats_app.statistics import FeatureMap, FeatureStatistics
from fedstats_app.strategies.base import StatisticsStrategy
from fedstats_app.training.options import LocalOptions, running_statistics
from fedstats_app.training.request import TrainingRequest


@dataclass(frozen=True)
class PersonalStage:
    """A finished first stage, and what personal models need of it.

    Attributes
    ----------
    grid : ClientGrid
        The one that stage 1 ran on.
    config : AppConfig
        Of the run.
    strategy : StatisticsStrategy
        Finished, its statistics without the samples that clients kept for testing.
    backbone : nn.Module
        The pre-trained network, from images to features.
    clients : mapping
        From the clients that take part to their number of training samples.
    say : callable
        Prints a line.

    Raises
    ------
    ValueError
        If clients kept no samples for testing, or no method that makes personal heads was solved.
    """

    grid: ClientGrid
    config: AppConfig
    strategy: StatisticsStrategy
    backbone: nn.Module
    clients: Mapping[int, int]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        if not self.strategy.request.holdout:
            raise ValueError("personal models are tested on samples that clients keep: holdout must be above 0, got 0")
        if not self.start_methods:
            needed, solved = " or ".join(PERSONAL_METHODS), ", ".join(self.strategy.heads)
            raise ValueError(f"personal models need the head of {needed}, got {solved}")

    @property
    def start_methods(self) -> tuple[str, ...]:
        """The methods solved that make personal heads; models start from the first one's head."""
        return tuple(name for name in PERSONAL_METHODS if name in self.strategy.heads)

    @property
    def start_head(self) -> LinearHead:
        """The head that one-shot personalisation starts from."""
        return self.strategy.heads[self.start_methods[0]]

    @property
    def predictable(self) -> Tensor:
        """(C,) bool, the classes that any client sent statistics of."""
        return self.start_head.present

    def feature_map(self, method: str | None = None) -> FeatureMap:
        """Return what is between backbone and head, of the start's method by default."""
        return self.strategy.methods()[method or self.start_methods[0]].specification.feature_map

    def statistics(self, method: str | None = None) -> FeatureStatistics:
        """Return the federation's statistics, of the start's method by default."""
        return self.strategy.statistics(method or self.start_methods[0]).summed()

    def head_arrays(self) -> dict[str, Tensor]:
        """Return the head to start from as it travels: float32, with a bias of 0 where an absent class has none."""
        head = self.start_head
        bias = torch.where(head.present, head.bias, torch.zeros_like(head.bias))
        return {"head.weight": head.weight.float(), "head.bias": bias.float()}

    def request(self, epochs: int) -> TrainingRequest:
        """Return how clients train a whole model, the same in all approaches but for the number of epochs."""
        config, asked = self.config, self.strategy.request
        return TrainingRequest(
            asked.num_classes,
            "full",
            LocalOptions(
                epochs=epochs,
                batch_size=config.personal.personal_batch_size,
                learning_rate=config.personal.personal_learning_rate,
                momentum=config.personal.personal_momentum,
                weight_decay=config.personal.personal_weight_decay,
                flip=config.local.flip,
            ),
            temperature=config.tuning.temperature,
            batch_norm=running_statistics(config.tuning.batch_norm),
            feature_map=self.feature_map(),
            seed=asked.seed,
            holdout=asked.holdout,
            backbone_fingerprint=asked.backbone_fingerprint,
            class_names=asked.class_names,
        )
