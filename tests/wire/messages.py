"""A good message of every kind, what reads it, and the tools to forge others from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from flwr.app import Message, RecordDict

from fedstats_app import wire
from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.heads import ConfusionMatrix, HeadScores, LinearHead
from fedstats_app.methods import METHODS
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.wire import mezo, personal, personal_heads, prototypes, training
from fedstats_app.wire.arrays import to_record
from tests.support.local_grid import instruction
from tests.wire.replies import DIM, FEW, NUM_CLASSES, SCATTER, features_and_labels, honest_reply, request_for

FED3R = METHODS["fed3r"].configured(METHODS["fed3r"].options(ridge_lambda=2.0, kernel_width=3.0))
NAMES = tuple("abcde")
REQUEST = training.TrainingRequest(NUM_CLASSES, "full", class_names=NAMES)
ARRAYS = {"head.weight": torch.ones(NUM_CLASSES, DIM), "head.bias": torch.zeros(NUM_CLASSES)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in ARRAYS.items()}
EVERY = torch.ones(NUM_CLASSES, dtype=torch.bool)
SHARED = personal.Prototypes(torch.ones(NUM_CLASSES, DIM), EVERY, "mean-square", 0.5)
HEAD = LinearHead(torch.ones(NUM_CLASSES, DIM), torch.zeros(NUM_CLASSES))
STATISTICS = FeatureStatistics.from_features(*features_and_labels(), NUM_CLASSES)
SETUP = MezoSetup(REQUEST, tuned="full", num_directions=2)
MEZO_REQUEST = mezo.MezoRequest(0, 2, 6, (Update(5, (0.5, 0.25)),), "curvature", True, setup=SETUP, start=ARRAYS)
METRICS = personal.PersonalMetrics(100, 25, 10, 20, 6000, 1.5)
LOCAL = prototypes.LocalPrototypes(torch.tensor([0, 3]), torch.ones(2, DIM), 0.75, True, METRICS)
ASKED = instruction(RecordDict())


@dataclass(frozen=True)
class Kind:
    """One kind of message: what makes the content of a good one, what reads it, and which parts may be missing."""

    make: Callable[[], RecordDict]
    reads: Callable[[Message], object]
    optional: frozenset[str] = frozenset()
    is_reply: bool = False

    @property
    def refusal(self) -> type[Exception]:
        return wire.RejectedReply if self.is_reply else wire.RejectedRequest

    def read(self, content: RecordDict) -> object:
        return self.reads(Message(content, reply_to=ASKED) if self.is_reply else instruction(content))


def training_content() -> RecordDict:
    config = personal.personal_content(REQUEST, {}, None, EVERY)["config"]
    config["proximal-mu"] = 0.1  # type: ignore[index,call-overload]
    return RecordDict({"arrays": to_record(ARRAYS), "fixed": to_record(ARRAYS), "config": config})


def scored_reply() -> Message:
    labels = torch.arange(20) % NUM_CLASSES
    scores = HeadScores.from_logits(torch.zeros(20, NUM_CLASSES).double(), labels, labels)
    pooled = replace(scores, confusion=ConfusionMatrix(scores.confusion.matrix, 20, 3))
    return wire.evaluation_reply(ASKED, {"x": pooled})


def _request(make: Callable[[], RecordDict], reads: Callable[[Message], object], *optional: str) -> Kind:
    return Kind(make, reads, frozenset(optional))


def _reply(make: Callable[[], Message], reads: Callable[[Message], object], *optional: str) -> Kind:
    return Kind(lambda: make().content, reads, frozenset(optional), is_reply=True)


KINDS: dict[str, Kind] = {
    "statistics": _request(wire.StatisticsRequest(5, class_names=NAMES).to_content, wire.read_statistics_request),
    "statistics with a factor": _request(request_for(SCATTER).to_content, wire.read_statistics_request),
    "heads": _request(
        lambda: wire.evaluation_content(wire.StatisticsRequest(NUM_CLASSES), {"x": (0, HEAD)}),
        wire.read_evaluation_request,
        "head.x",
    ),
    "train": _request(training_content, training.read_training_task, "proximal-mu", *ARRAYS),
    "losses reply": _reply(
        lambda: training.losses_reply(ASKED, [0.5 + n for n in range(33)], 7),
        lambda reply: training.read_losses_reply(reply, 7),
    ),
    "personalise": _request(
        lambda: personal.personal_content(REQUEST, ARRAYS, SHARED, EVERY),
        personal.read_personal_task,
        "prototypes",
        *ARRAYS,
    ),
    "prototypes": _request(
        lambda: prototypes.prototype_content(REQUEST, SHARED, EVERY, server_round=1, last=False),
        prototypes.read_prototype_task,
        "prototypes",
    ),
    "personal heads": _request(
        lambda: personal_heads.personal_heads_content(REQUEST, STATISTICS, FED3R, (0.0, 1.0), wire_dtype="float64"),
        personal_heads.read_personal_heads_task,
    ),
    "mezo": _request(MEZO_REQUEST.to_content, mezo.read_mezo_request, "p", "w", "x", "setup", *ARRAYS),
    "partition": _reply(
        lambda: wire.node_info_reply(ASKED, wire.NodeInfo(1, 3, trains=False, any_app=True)),
        wire.read_node_info,
        "trains",
        "any-app",
    ),
    "classes": _reply(
        lambda: wire.node_info_reply(
            ASKED, wire.NodeInfo(class_names=("a", "b"), class_ids=(0, 7), trains=False, any_app=True)
        ),
        wire.read_node_info,
        "trains",
        "any-app",
        "class-ids",
    ),
    "statistics reply": _reply(
        lambda: honest_reply(request_for()),
        lambda reply: wire.read_statistics_reply(reply, request_for()),
        "about",
        "backbone-fingerprint",
    ),
    "statistics reply of few samples": _reply(
        lambda: honest_reply(request_for(), n=FEW),
        lambda reply: wire.read_statistics_reply(reply, request_for()),
        "about",
        "backbone-fingerprint",
    ),
    "statistics reply with a factor": _reply(
        lambda: honest_reply(request_for(SCATTER)),
        lambda reply: wire.read_statistics_reply(reply, request_for(SCATTER)),
        "about",
        "backbone-fingerprint",
    ),
    "heads reply": _reply(
        scored_reply,
        lambda reply: wire.read_evaluation_reply(reply, wire.StatisticsRequest(NUM_CLASSES), ("x",)),
        "pooled",
    ),
    "train reply": _reply(
        lambda: training.training_reply(ASKED, ARRAYS, num_examples=7, loss=0.25, seconds=1.5),
        lambda reply: training.check_training_reply(reply, SHAPES, 7),
    ),
    "model reply": _reply(
        lambda: training.model_evaluation_reply(ASKED, training.EvaluationCounts(4, 3, 1.5)),
        training.read_model_evaluation_reply,
    ),
    "personalise reply": _reply(lambda: personal.personal_reply(ASKED, METRICS), personal.read_personal_reply),
    "prototypes reply": _reply(
        lambda: prototypes.prototype_reply(ASKED, LOCAL),
        lambda reply: prototypes.read_prototype_reply(reply, NUM_CLASSES, DIM),
    ),
    "personal heads reply": _reply(
        lambda: personal_heads.personal_heads_reply(ASKED, METRICS, 0.3), personal_heads.read_personal_heads_reply
    ),
    "scores reply": _reply(
        lambda: personal_heads.head_scores_reply(ASKED, 7, {"x": 3}),
        lambda reply: personal_heads.read_head_scores_reply(reply, ("x",)),
    ),
    "mezo reply": _reply(
        lambda: mezo.mezo_reply(ASKED, mezo.MezoReply((0.5,), 3, bytes(16))),
        lambda reply: mezo.read_mezo_reply(reply, 1),
    ),
    "behind": _reply(lambda: mezo.mezo_reply(ASKED, mezo.Behind(3)), lambda reply: mezo.read_mezo_reply(reply, 1)),
}
