"""The server's test set: its features are computed once and serve all heads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedstats_app.backbones.feature_reader import DatasetSamples, FeatureReader
from fedstats_app.data import Dataset
from fedstats_app.grid.evaluation import Scores
from fedstats_app.heads import ConfusionMatrix, HeadScores, LinearHead
from fedstats_app.heads.calibration import SAMPLES_OF_GUESS, TEMPERATURES, cross_fitted, temperatures_around
from fedstats_app.heads.influence import evenly_spaced
from fedstats_app.heads.target_scores import TargetScores
from fedstats_app.training.samples import Samples, TensorSamples


class ServerTestSet:
    """Test samples of the server, of the federation's classes, read on first use by the run's backbone."""

    def __init__(self, dataset: Dataset, reader: FeatureReader) -> None:
        self.dataset, self._reader = dataset, reader
        self._blocks: list[tuple[Tensor, Tensor]] | None = None
        self._read: list[Tensor] = []

    @property
    def blocks(self) -> list[tuple[Tensor, Tensor]]:
        """Features (b, d) float32 and labels (b,) of all samples that can be read, on the CPU."""
        if self._blocks is None:
            targets = self.dataset.targets
            labels = torch.from_numpy(np.array(self.dataset.labels if targets is None else targets.values))
            everything = np.arange(len(self.dataset))
            self._blocks = []
            for features, positions in self._reader.blocks(self.dataset, everything):
                self._blocks.append((features.cpu(), labels[positions]))
                self._read.append(positions)
        return self._blocks

    @property
    def num_readable(self) -> int:
        """Test samples that can be read."""
        return sum(len(labels) for _, labels in self.blocks)

    def samples(self, *, features: bool) -> Samples:
        """Return the test samples as a model in training takes them: features, or inputs of the backbone."""
        if not features:
            return DatasetSamples(self.dataset, np.arange(len(self.dataset)), self._reader.backbone)
        return TensorSamples(torch.cat([block for block, _ in self.blocks]), self.labels())

    def evaluate(self, heads: Mapping[str, LinearHead]) -> dict[str, ConfusionMatrix]:
        """Return the confusion matrix of every head."""
        num_classes = len(self.dataset.class_names)
        total = {name: ConfusionMatrix.zeros(num_classes) for name in heads}
        for features, labels in self.blocks:
            for name, head in heads.items():
                predictions = head.predict(features)
                total[name] += ConfusionMatrix.from_predictions(labels, predictions, num_classes)
        return total

    def score(self, heads: Mapping[str, LinearHead], *, every_temperature: bool = False) -> Scores:
        """Measure every head on all test samples, choose its temperature, and note the samples that it gets right.

        Scores are those of the head as it is saved, in float32. Temperatures far from the best are measured only with
        ``every_temperature``; the choice is the same.
        """
        found, calibrations, right = {}, {}, {}
        every = every_temperature or self.num_readable < 4 * SAMPLES_OF_GUESS
        some, of_some = self.evenly_spaced(SAMPLES_OF_GUESS)
        persons = None
        if self.dataset.persons is not None and self._read:
            ids = self.dataset.persons[torch.cat(self._read).numpy()]
            persons = torch.from_numpy(np.unique(ids, return_inverse=True)[1])
        for name, exact in heads.items():
            head = exact.to(dtype=torch.float32)
            near = TEMPERATURES if every else temperatures_around(head.logits(some), of_some, self.num_readable)
            scores, right[name] = self._counted(head, near)
            if not all(sums.has_least for sums in (scores.even, scores.odd, scores.calibration)):
                scores, right[name] = self._counted(head, TEMPERATURES)
            found[name] = scores
            if persons is not None:
                scores.confusion += ConfusionMatrix.of_persons(right[name], persons, len(head.present))
            calibrations[name] = cross_fitted((scores.even, scores.odd))
        return Scores(
            "server", found, right=right, calibrations=calibrations, num_unreadable=self._reader.num_unreadable
        )

    def _counted(self, head: LinearHead, temperatures: tuple[float, ...]) -> tuple[HeadScores, Tensor]:
        """Return a head's scores at some temperatures, and (n,) bool for the samples that it gets right."""
        scores, correct = HeadScores.zeros(head.num_classes, temperatures), [torch.zeros(0, dtype=torch.bool)]
        for features, labels in self.blocks:
            logits = head.logits(features)
            predictions = logits.argmax(dim=1)
            scores.count(logits, labels, predictions)
            correct.append(predictions == labels)
        return scores, torch.cat(correct)

    def score_targets(self, heads: Mapping[str, LinearHead], kind: str) -> Scores:
        """Measure every head of several labels or numbers on all test samples."""
        found = {}
        for name, head in heads.items():
            found[name] = TargetScores.zeros(kind, head.num_classes)
            for features, targets in self.blocks:
                found[name] += TargetScores.of(kind, head.logits(features), targets, head)
        return Scores("server", targets=found, num_unreadable=self._reader.num_unreadable)

    def evenly_spaced(self, number: int) -> tuple[Tensor, Tensor]:
        """Return (m, d) features and (m,) labels of m samples, evenly spaced among those that can be read."""
        chosen = evenly_spaced(self.num_readable, number)
        found = [torch.zeros(0, self._reader.backbone.feature_dim)]
        start = 0
        for features, _ in self.blocks:
            here = chosen[(chosen >= start) & (chosen < start + len(features))]
            found.append(features[here - start])
            start += len(features)
        return torch.cat(found), self.labels()[chosen]

    def labels(self) -> Tensor:
        """Return (n,) int64 labels of all samples that can be read."""
        return torch.cat([torch.zeros(0, dtype=torch.int64), *(labels for _, labels in self.blocks)])
