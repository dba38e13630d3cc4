"""The server's test set: scores of heads, and evenly spaced samples."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstats_app.heads import HeadScores, LinearHead
from fedstats_app.heads.calibration import TEMPERATURES, cross_fitted
from fedstats_app.server.evaluation_data import ServerTestSet

N, C, D = 3000, 6, 8


class Labels(list[int]):
    """A data set of which only its labels are asked."""

    class_names = tuple(str(c) for c in range(C))
    persons = None
    kind = "image"
    targets = None

    @property
    def labels(self) -> "Labels":
        return self


class Blocks:
    """A reader of features that are there; counts how often they were gone through."""

    num_unreadable = 0
    backbone = SimpleNamespace(feature_dim=D)

    def __init__(self, features: Tensor) -> None:
        self.features = features

    def blocks(self, dataset: Any, indices: Any) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.features), 1000):
            part = self.features[start : start + 1000]
            yield part, torch.arange(start, start + len(part))


def a_test_set_and_a_head(scale: float, *, by_class: bool) -> tuple[ServerTestSet, LinearHead]:
    draw = torch.Generator().manual_seed(3)
    labels = torch.randint(0, C, (N,), generator=draw)
    labels = labels.sort().values if by_class else labels
    features = torch.eye(C, D)[labels] + 0.8 * torch.randn(N, D, generator=draw)
    test_set = ServerTestSet(Labels(labels.tolist()), Blocks(features))  # type: ignore[arg-type]
    return test_set, LinearHead(scale * torch.eye(C, D), torch.zeros(C))


@pytest.mark.parametrize("number", [1, 7, N])
def test_evenly_spaced_samples_are_those_of_the_whole(number: int) -> None:
    test_set, *_ = a_test_set_and_a_head(1.0, by_class=True)
    features, labels = test_set.evenly_spaced(number)
    places = torch.linspace(0, N - 1, min(number, N)).long()
    assert torch.equal(features, torch.cat([block for block, _ in test_set.blocks])[places])
    assert torch.equal(labels, test_set.labels()[places])


def test_where_no_sample_can_be_read_nothing_is_scored() -> None:
    test_set = ServerTestSet(Labels(), Blocks(torch.zeros(0, D)))  # type: ignore[arg-type]
    features, labels = test_set.evenly_spaced(5)
    assert features.shape == (0, D) and labels.shape == (0,) and labels.dtype == torch.int64
    assert test_set.score({"one": LinearHead(torch.eye(C, D), torch.zeros(C))}).heads["one"].confusion.num_examples == 0


def test_heads_that_lack_a_class_are_scored_as_they_predict() -> None:
    test_set, head = a_test_set_and_a_head(1.0, by_class=False)
    head = LinearHead(head.weight.double(), head.bias.double(), torch.arange(C) != 1)
    parts = [(head.logits(features), labels) for features, labels in test_set.blocks]
    predictions = [head.predict(features) for features, _ in test_set.blocks]
    found = [HeadScores.zeros(C).count(*part, one) for part, one in zip(parts, predictions, strict=True)]
    whole = sum(found, HeadScores.zeros(C))
    scores = test_set.score({"one": head})

    assert scores.calibrations["one"] == cross_fitted((whole.even, whole.odd))
    assert int(scores.right["one"].sum()) == whole.confusion.num_correct
    assert torch.equal(scores.heads["one"].confusion.matrix, whole.confusion.matrix)
    assert torch.equal(scores.heads["one"].margins.negatives, whole.margins.negatives)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("by_class", [False, True])
def test_the_temperature_is_that_of_all_temperatures(scale: float, by_class: bool) -> None:
    test_set, head = a_test_set_and_a_head(scale, by_class=by_class)
    quick, slow = test_set.score({"one": head}), test_set.score({"one": head}, every_temperature=True)
    assert quick.calibrations == slow.calibrations
    assert len(quick.heads["one"].even.temperatures) < 10 < len(slow.heads["one"].even.temperatures)


def test_a_guess_far_from_the_best_temperature_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    test_set, head = a_test_set_and_a_head(1.0, by_class=False)
    slow = test_set.score({"one": head}, every_temperature=True)
    far = (1.0, *TEMPERATURES[-4:])
    monkeypatch.setattr("fedstats_app.server.evaluation_data.temperatures_around", lambda *_: far)
    assert test_set.score({"one": head}).calibrations == slow.calibrations


def test_where_all_samples_are_right_the_guess_knows_how_many_there_are() -> None:
    _, head = a_test_set_and_a_head(1.0, by_class=False)
    labels = torch.arange(20 * N) % C
    test_set = ServerTestSet(Labels(labels.tolist()), Blocks(torch.eye(C, D)[labels]))  # type: ignore[arg-type]
    assert len(test_set.score({"one": head}).heads["one"].even.temperatures) < 10
