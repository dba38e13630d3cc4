"""What all ways to personal models are given, and their results made of what clients answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedstats_app.base.progress import Progress
from fedstats_app.grid.asking import Answers
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.methods import PERSONAL_METHODS, ConfiguredMethod, record_of
from fedstats_app.report.personal_result import PersonalResult
from fedstats_app.report.state import SolvedHead
from fedstats_app.statistics import CollectedStatistics, FeatureStatistics
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.personal_options import PersonalOptions
from fedstats_app.wire import StatisticsRequest
from fedstats_app.wire.personal import PersonalMetrics

Metrics = TypeVar("Metrics", bound=PersonalMetrics)


def personal_result(
    approach: str, answers: Answers[Metrics], started: float, *, before: bool = False
) -> PersonalResult:
    """Return the result of an approach that asks once, and began at ``started`` by ``time.perf_counter()``.

    With ``before`` it is of the models that clients started from, rather than of their own; those cost no training.
    """
    tested = {client: metrics for client, metrics in answers.of.items() if metrics.num_test}
    return PersonalResult(
        approach,
        {client: metrics.correct_before if before else metrics.correct_after for client, metrics in tested.items()},
        {client: metrics.num_test for client, metrics in tested.items()},
        answers.failures,
        answers.bytes_down,
        answers.bytes_up,
        0 if before else sum(metrics.forward_passes for metrics in answers.of.values()),
        time.perf_counter() - started,
    )


@dataclass(frozen=True)
class PersonalSession:
    """What the first stage left, and how personal models are made of it.

    Attributes
    ----------
    clients : mapping
        From those that take part to their number of training samples.
    asked : StatisticsRequest
        As clients were asked for the statistics, with the share of their samples that they keep for testing.
    statistics : CollectedStatistics
        Of all clients, without the samples that they kept.
    methods : mapping
        From method to how its head was solved.
    training : TrainingRequest
        What all that trains has in common; whether images are flipped is among its options.

    Raises
    ------
    ValueError
        If clients kept no samples for testing, or no method that makes personal heads was solved.
    """

    options: PersonalOptions
    grid: ClientGrid
    clients: Mapping[int, int]
    asked: StatisticsRequest
    heads: Mapping[str, SolvedHead]
    statistics: CollectedStatistics
    methods: Mapping[str, ConfiguredMethod]
    training: TrainingRequest
    backbone: nn.Module
    progress: Progress

    def __post_init__(self) -> None:
        if not self.asked.holdout:
            raise ValueError("personal models are tested on samples that clients keep: holdout must be above 0, got 0")
        if not self.start_methods:
            needed, solved = " or ".join(PERSONAL_METHODS), ", ".join(self.heads)
            raise ValueError(f"personal models need the head of {needed}, got {solved}")

    @property
    def start_methods(self) -> tuple[str, ...]:
        """The methods solved that make personal heads; models start from the first one's head."""
        solved = [name for name in self.heads if record_of(name).name in PERSONAL_METHODS]
        return tuple(sorted(solved, key=lambda name: PERSONAL_METHODS.index(record_of(name).name)))

    @property
    def start(self) -> SolvedHead:
        """The head that one-shot personalisation starts from."""
        return self.heads[self.start_methods[0]]

    @property
    def predictable(self) -> Tensor:
        """(C,) bool, the classes that any client sent statistics of."""
        return self.start.head.present

    def spec_index(self, head: SolvedHead) -> int:
        """Return which of the specifications a head was solved from: there is one per feature map."""
        return next(i for i, spec in enumerate(self.asked.specs) if spec.feature_map == head.feature_map)

    def statistics_of(self, method: str) -> FeatureStatistics:
        """Return the federation's statistics that a method's head was solved from."""
        return self.methods[method].sums(self.statistics.sums[self.spec_index(self.heads[method])])

    def head_arrays(self) -> dict[str, Tensor]:
        """Return the head to start from as it travels: float32, with a bias of 0 where an absent class has none."""
        head = self.start.head
        bias = torch.where(head.present, head.bias, torch.zeros_like(head.bias))
        return {"head.weight": head.weight.float(), "head.bias": bias.float()}

    def request(self, epochs: int) -> TrainingRequest:
        """Return how clients train a whole model, the same in all approaches but for the number of epochs."""
        return replace(
            self.training,
            tune="full",
            options=self.options.local(epochs, flip=self.training.options.flip),
            tune_bias=True,
            feature_map=self.start.feature_map,
        )
