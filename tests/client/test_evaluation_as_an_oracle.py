"""A server that chooses the heads to be scored learns of single samples no more than counts of many say."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client.evaluation import evaluate_heads
from fedstats_app.client.site import ClientSplit
from fedstats_app.heads import ClientScores, LinearHead
from fedstats_app.heads.leave_one_out import LeaveOneOut
from fedstats_app.heads.summed_scores import LOSS_STEP, MOST_LOSS, SummedScores
from fedstats_app.wire import StatisticsRequest
from tests.support.hostile_server import CLASSES, Victim

DIM, FLOOR, FAR = 32, 5, 1e3
THREE = (*CLASSES, "forged")
FORGED = tuple(f"forged {number}" for number in range(64))
UNIT = torch.eye(DIM, dtype=torch.float64)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Victim:
    return Victim.of(tmp_path_factory.mktemp("victim"), few=20)


def scores(
    victim: Victim, split: ClientSplit, heads: dict[str, LinearHead], *, floor: int = FLOOR
) -> dict[str, ClientScores]:
    request = StatisticsRequest(len(split.dataset.class_names))
    return evaluate_heads(FeatureReader(victim.backbone), split, request, heads, min_class_count=floor)


def line(direction: Tensor, offset: float) -> LinearHead:
    """Return a head that knows bees and a forged class: where that is far ahead, a bee's loss is linear."""
    weight = torch.stack([torch.zeros_like(direction), torch.zeros_like(direction), direction])
    return LinearHead(weight, torch.tensor([0.0, 0.0, offset]).double(), torch.tensor([False, True, True]))


def temperatures(found: dict[str, ClientScores]) -> set[int | None]:
    return {one.temperature for one in found.values()}


@pytest.mark.parametrize("few", [1, 4])
def test_a_class_with_few_samples_has_no_say_in_a_temperature(victim: Victim, few: int) -> None:
    """Sums of its losses at 97 temperatures gave the exact feature of the one bee."""
    split = victim.hold_out(10, few, THREE)
    heads = {f"h{k}": line(UNIT[k], FAR) for k in range(DIM)}

    assert temperatures(scores(victim, split, heads)) == {None}


def test_of_many_samples_one_does_not_choose_the_temperature(victim: Victim) -> None:
    """A head so steep that one sample alone is wrong: how far it was over the line, the best temperature told."""
    split = victim.hold_out(10, 10, THREE)
    bees = victim.features(split)[0][10:].double()
    direction = bees[0] - bees[1:].mean(dim=0)
    along = (bees @ direction).sort().values
    far = 1.0 / float(along[-1] - along[-2])
    heads = {
        f"h{k}": line(far * scale * direction, -far * scale * float(along[-1] + along[-2]) / 2)
        for k, scale in enumerate((0.1, 0.3, 1.0, 3.0, 10.0, 30.0))
    }

    assert len(temperatures(scores(victim, split, heads, floor=0))) >= 5
    assert len(temperatures(scores(victim, split, heads)) - {None}) <= 1


def test_what_forged_classes_are_taken_for_does_not_list_single_samples(victim: Victim) -> None:
    """Sixty-four of them cut a line into pieces: nearly each sample was in one of its own."""
    split = victim.hold_out(10, 10, (*CLASSES, *FORGED))
    features, _ = victim.features(split)
    place = features[:, 3].double()
    points = torch.linspace(float(place.min()), float(place.max()), len(FORGED), dtype=torch.float64)
    weight = torch.cat([torch.zeros(2, DIM, dtype=torch.float64), 2.0 * points[:, None] * UNIT[3]])
    head = {"nearest": LinearHead(weight, torch.cat([torch.full((2,), -1e6, dtype=torch.float64), -points.square()]))}

    unprotected, found = (scores(victim, split, head, floor=floor)["nearest"] for floor in (0, FLOOR))

    assert int((unprotected.confusion.matrix.sum(dim=0) == 1).sum()) >= 5
    assert all(count == 0 or count >= FLOOR for count in found.confusion.matrix.sum(dim=0)[len(CLASSES) :].tolist())
    assert (found.confusion.num_examples, found.confusion.num_correct) == (20, 0) and not len(found.margins)


def test_no_bin_is_of_few_samples_of_a_class(victim: Victim) -> None:
    """Fourteen of forty-six bins told of one to four samples of a class, among more of the others."""
    split = victim.hold_out(16, 12)
    heads = {f"h{k}": LinearHead(torch.stack([UNIT[k], -UNIT[k]]), torch.zeros(2).double()) for k in range(DIM)}

    for found in scores(victim, split, heads).values():
        for counts in found.margins[:, 2:].unbind(dim=1):
            assert int(counts.sum()) == 28 and bool((counts[counts > 0] >= FLOOR).all())


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
def test_one_sample_moves_no_sum_of_scores_far(victim: Victim, scale: float) -> None:
    """Heads so steep that one sample alone is wrong: its losses at 25 temperatures told how far it was over a line."""
    whole = victim.hold_out(20, 20)
    labels = whole.dataset.labels[whole.held_out]
    features = victim.features(whole)[0].double()
    lines = {f"h{k}": (UNIT[k], float(features[labels == 1, k].sort().values[-2:].mean())) for k in range(4)}
    heads = {
        name: LinearHead(torch.stack([scale * w, -scale * w]), torch.tensor([-scale * at, scale * at]).double())
        for name, (w, at) in lines.items()
    }
    plain = LeaveOneOut(torch.zeros(DIM, DIM, dtype=torch.float64), torch.ones(2, dtype=torch.float64))

    def numbers(kept: NDArray[np.int64]) -> dict[str, SummedScores]:
        split, request = ClientSplit(whole.dataset, kept, kept[:0]), StatisticsRequest(2)
        reader = FeatureReader(victim.backbone)
        found = evaluate_heads(reader, split, request, heads, min_class_count=FLOOR, left_out=plain, summed=True)
        return {name: SummedScores.of(one, by_class=True) for name, one in found.items()}

    found, told = numbers(whole.held_out), 0
    for name, (w, _) in lines.items():
        of_labels = found[name].of_labels
        assert int(of_labels.sum()) == 40 and bool((of_labels[of_labels > 0] >= FLOOR).all())
        alone = int((features[20:] @ w).argmax()) + 20
        others = numbers(np.delete(whole.held_out, alone))[name]
        change = (found[name].losses - others.losses).abs()
        assert int(change.max()) <= MOST_LOSS / LOSS_STEP
        told += int(change.max()) > 0
    assert told  # it does move it
