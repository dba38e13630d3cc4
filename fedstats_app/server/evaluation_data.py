"""The server's test set: its features are computed once and serve all heads of all rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.samples import DatasetSamples
from fedstats_app.data import Dataset
from fedstats_app.grid.progress import Progress
from fedstats_app.heads import Calibration, ConfusionMatrix, HeadScores, LinearHead
from fedstats_app.heads.calibration import TEMPERATURES, likely_temperatures
from fedstats_app.heads.influence import evenly_spaced
from fedstats_app.statistics import FeatureMap
from fedstats_app.training.samples import Samples, TensorSamples

# So many test samples, evenly spaced, tell which temperatures are worth measuring on all.
TEMPERATURE_SAMPLES = 512
# Logits of one head are gone through twice, or three times: those that fit into so many bytes are computed once.
MAX_LOGIT_BYTES = 400 * 2**20


class ServerTestSet:
    """Test samples of the server, read on first use.

    Parameters
    ----------
    dataset : Dataset
        With the federation's classes.
    reader : FeatureReader
        With the run's backbone.
    progress : Progress, optional
        Is told how many samples were read.
    """

    def __init__(self, dataset: Dataset, reader: FeatureReader, progress: Progress | None = None) -> None:
        self.dataset, self._reader, self._progress = dataset, reader, progress or Progress()
        self._blocks: list[tuple[Tensor, Tensor]] | None = None
        self._positions: list[int] = []  # in the data set, of the samples that can be read

    @property
    def blocks(self) -> list[tuple[Tensor, Tensor]]:
        """Features (b, d) float32 and labels (b,) of all samples that can be read, on the CPU."""
        if self._blocks is None:
            labels = torch.from_numpy(np.array(self.dataset.labels))
            everything = np.arange(len(self.dataset))
            self._blocks, self._positions = [], []
            with self._progress.doing("features of {done} of {total} test samples", len(self.dataset)) as step:
                for features, positions in self._reader.blocks(self.dataset, everything):
                    self._blocks.append((features.cpu(), labels[positions]))
                    self._positions.extend(positions.tolist())
                    step.at(int(positions[-1]) + 1)
        return self._blocks

    @property
    def num_readable(self) -> int:
        """Test samples that can be read."""
        return sum(len(labels) for _, labels in self.blocks)

    @property
    def num_unreadable(self) -> int:
        """Test samples that could not be read so far."""
        return self._reader.num_unreadable

    def samples(self, feature_map: FeatureMap | None) -> Samples:
        """Return the test samples as a model in training takes them: mapped features, or without a map its inputs."""
        if feature_map is None:
            return DatasetSamples(self.dataset, np.arange(len(self.dataset)), self._reader.backbone)
        features = torch.cat([feature_map(block).float() for block, _ in self.blocks])
        return TensorSamples(features, self.labels())

    def evaluate(
        self, heads: Mapping[str, tuple[FeatureMap, LinearHead]], *, mask_absent: bool
    ) -> dict[str, ConfusionMatrix]:
        """Return the confusion matrix of every head, given with the feature map it was solved for."""
        num_classes = len(self.dataset.class_names)
        total = {name: ConfusionMatrix.zeros(num_classes) for name in heads}
        for features, labels in self.blocks:
            for name, (feature_map, head) in heads.items():
                predictions = head.predict(feature_map(features), mask_absent=mask_absent)
                total[name] += ConfusionMatrix.from_predictions(labels, predictions, num_classes)
        return total

    def score(
        self, heads: Mapping[str, tuple[FeatureMap, LinearHead]], *, mask_absent: bool
    ) -> tuple[dict[str, HeadScores], dict[str, Calibration | None], dict[str, Tensor]]:
        """Return all that the test samples say of every head, the temperature that leads to, and who is right where.

        The last is by head (n,) bool: which samples it classifies correctly.

        Only predictions can be of absent classes. Of the temperatures only those are measured that can be best, as a
        few samples tell, unless they were wrong; the errors after the best one are counted again.
        """
        found, calibrations, right = {}, {}, {}
        for name, (feature_map, head) in heads.items():
            logits = _Logits(self.blocks, feature_map, head)
            likely = self._likely_temperatures(*heads[name])
            scores, right[name] = self._score(logits, mask_absent=mask_absent, temperatures=likely)
            if not scores.calibration.holds_best:
                scores, _ = self._score(logits, mask_absent=mask_absent, temperatures=TEMPERATURES)
            fitted = scores.calibration.fit()
            found[name] = scores
            calibrations[name] = fitted and fitted.counted((head.masked(block), labels) for block, labels in logits)
        return found, calibrations, right

    def _score(self, logits: _Logits, *, mask_absent: bool, temperatures: Sequence[float]) -> tuple[HeadScores, Tensor]:
        total, right = HeadScores.zeros(len(self.dataset.class_names), temperatures), []
        for block, labels in logits:
            masked = logits.head.masked(block)
            predictions = (masked if mask_absent else block).argmax(dim=1)
            total += HeadScores.from_logits(masked, labels, predictions, temperatures)
            right.append(predictions == labels)
        return total, torch.cat([torch.zeros(0, dtype=torch.bool), *right])

    def _likely_temperatures(self, feature_map: FeatureMap, head: LinearHead) -> Sequence[float]:
        num_examples = self.num_readable
        if num_examples < 2 * TEMPERATURE_SAMPLES:
            return TEMPERATURES
        features, labels = self.evenly_spaced(TEMPERATURE_SAMPLES)
        return likely_temperatures(head.logits(feature_map(features)), labels, num_examples)

    def predictions(self, feature_map: FeatureMap, head: LinearHead, *, mask_absent: bool) -> list[tuple[int, int]]:
        """Return of every sample that can be read its position in the data set and the class a head predicts."""
        predicted = [head.predict(feature_map(block), mask_absent=mask_absent) for block, _ in self.blocks]
        return list(zip(self._positions, torch.cat(predicted).tolist(), strict=True))

    def evenly_spaced(self, number: int) -> tuple[Tensor, Tensor]:
        """Return (m, d) features and (m,) labels of so many samples, evenly spaced among those that can be read."""
        chosen = evenly_spaced(self.num_readable, number)
        found = [torch.zeros(0, self._reader.backbone.feature_dim)]
        start = 0
        for features, _ in self.blocks:
            here = chosen[(chosen >= start) & (chosen < start + len(features))]
            found.append(features[here - start])
            start += len(features)
        return torch.cat(found), self.labels()[chosen]

    def features(self) -> Tensor:
        """Return (n, d) the features of all samples that can be read, a copy."""
        return torch.cat([features for features, _ in self.blocks])

    def labels(self) -> Tensor:
        """Return (n,) int64 labels of all samples that can be read."""
        return torch.cat([torch.zeros(0, dtype=torch.int64), *(labels for _, labels in self.blocks)])


class _Logits:
    """One head's logits of all samples, absent classes among them, block by block and as often as somebody asks.

    Parameters
    ----------
    blocks : sequence of (Tensor, Tensor)
        Features and labels.
    feature_map : FeatureMap
        That the head was solved for.
    head : LinearHead
        The head.
    """

    def __init__(self, blocks: Sequence[tuple[Tensor, Tensor]], feature_map: FeatureMap, head: LinearHead) -> None:
        self.head = head
        self._blocks, self._feature_map = blocks, feature_map
        self._kept: list[Tensor] = []
        self._room = MAX_LOGIT_BYTES

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield logits (b, C) and labels (b,); the first blocks are kept, as many as there is room for."""
        for index, (features, labels) in enumerate(self._blocks):
            if index < len(self._kept):
                yield self._kept[index], labels
                continue
            logits = self.head.logits(self._feature_map(features), mask_absent=False)
            if index == len(self._kept) and logits.nbytes <= self._room:
                self._kept.append(logits)
                self._room -= logits.nbytes
            yield logits, labels
