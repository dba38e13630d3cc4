"""Heads down, confusion matrices up."""

import pytest
import torch
from flwr.app import Message

from fedstats_app.heads import (
    ClientScores,
    ConfusionMatrix,
    HeadScores,
    LinearHead,
    MarginHistograms,
    filled_bins,
    margin_bins,
)
from fedstats_app.heads.leave_one_out import LeaveOneOut
from fedstats_app.privacy import confusion_above_floor, margins_above_floor
from fedstats_app.testing import instruction
from fedstats_app.wire import RejectedRequest, StatisticsRequest
from fedstats_app.wire.evaluation import (
    evaluation_content,
    evaluation_reply,
    read_evaluation_reply,
    read_evaluation_request,
)

C, D = 4, 3
REQUEST = StatisticsRequest(C, holdout=0.25)
HEAD = LinearHead(
    torch.randn(C, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    torch.arange(C, dtype=torch.float64),
    torch.tensor([True, False, True, True]),
)
LOGITS = torch.randn(20, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
CONFUSION = ConfusionMatrix(torch.tensor([[3, 0, 0, 1], [0, 0, 0, 0], [0, 0, 5, 0], [2, 0, 0, 9]]))
MARGINS = filled_bins(margin_bins(LOGITS), torch.arange(C).repeat_interleave(CONFUSION.matrix.sum(dim=1)))
NO_MARGINS = torch.zeros(0, 4, dtype=torch.int64)
SCORES = ClientScores(CONFUSION, MARGINS, 96)
NOTHING = ClientScores(ConfusionMatrix.zeros(C), NO_MARGINS, None)
# The same with three samples of class 3 that are said to be taken for no class in particular.
UNSAID = ClientScores(
    ConfusionMatrix(
        torch.tensor([[3, 0, 0, 1], [0, 0, 0, 0], [0, 0, 5, 0], [0, 0, 0, 8]]), 4, 2, torch.tensor([0, 0, 0, 3])
    ),
    MARGINS,
    None,
)
# Margins by class are withheld.
POOLED = ClientScores(CONFUSION, NO_MARGINS, 96, torch.tensor([[3, 9], [640, 11]]))


def question(head: LinearHead = HEAD) -> Message:
    return instruction(evaluation_content(REQUEST, {"fedncm": head, "fed3r": HEAD}), "evaluate.heads")


@pytest.mark.parametrize("scores", [SCORES, UNSAID, NOTHING, POOLED], ids=["some", "unsaid", "none", "pooled"])
def test_counts_arrive(scores: ClientScores) -> None:
    reply = evaluation_reply(question(), {"fedncm": scores})

    found = read_evaluation_reply(reply, REQUEST, ("fedncm",))["fedncm"]

    assert torch.equal(found.confusion.matrix, scores.confusion.matrix)
    assert torch.equal(found.confusion.elsewhere, scores.confusion.elsewhere)
    assert found.confusion.num_examples == scores.confusion.num_examples
    assert torch.equal(found.of_labels, scores.of_labels)
    assert torch.equal(found.margins, scores.margins) and found.temperature == scores.temperature
    assert len(reply.content["confusion.fedncm"]["cells"].numpy()) == int((scores.confusion.matrix > 0).sum())
    # Empty bins do not travel: at most one of 16 bytes for each sample and class.
    assert len(reply.content["margins.fedncm"]["bins"].numpy()) <= C * scores.confusion.num_examples


def test_one_head_is_judged_without_each_sample() -> None:
    left_out = LeaveOneOut(torch.eye(D, dtype=torch.float64), torch.ones(C, dtype=torch.float64))
    content = evaluation_content(REQUEST, {"fedncm": HEAD, "fed3r": HEAD}, left_out)
    with pytest.raises(RejectedRequest, match="leave-one-out: must come with one head, got 2"):
        read_evaluation_request(instruction(content, "evaluate.heads"))


def test_classes_that_a_client_makes_up_cost_what_its_samples_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole histograms are 2,562 numbers a class: of every client and method, 2,000 names took a minute."""
    classes, names = 1500, ("fedncm", "fed3r")
    labels = torch.arange(40) % 2
    bins = margin_bins(torch.randn(40, classes, generator=torch.Generator().manual_seed(0)))
    request = StatisticsRequest(classes, holdout=0.25)
    totals = {name: HeadScores.zeros(classes) for name in names}
    made: list[int] = []
    monkeypatch.setattr(MarginHistograms, "__post_init__", lambda self: made.append(len(self.positives)))

    for floor in (0, 12):
        scores = ClientScores(
            confusion_above_floor(labels, labels, classes, floor), margins_above_floor(labels, bins, floor), None
        )
        reply = evaluation_reply(question(), dict.fromkeys(names, scores))
        made.clear()  # a client makes the histograms of its own samples
        for name, found in read_evaluation_reply(reply, request, names).items():
            totals[name].count_client(found)
        assert not made

    assert all(total.confusion.num_correct == 80 for total in totals.values())
    assert all(int(total.margins.positives.sum()) == 40 for total in totals.values())
