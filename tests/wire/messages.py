"""A good message of every kind, what it says, what reads it, and the tools to forge others from it."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedstats_app import wire
from fedstats_app.base.rank_rule import RankRule
from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.heads import ClientScores, ConfusionMatrix, HeadScores, LinearHead
from fedstats_app.heads.leave_one_out import LeaveOneOut
from fedstats_app.methods.fed3r import Fed3RMethod, Fed3ROptions
from fedstats_app.statistics import FeatureStatistics, ScatterSpec, StatisticsSpec
from fedstats_app.testing import instruction
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.wire import StatisticsRequest, evaluation, mezo, statistics_reply, training
from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.reading import metrics_reply

NUM_CLASSES, DIM, NUM_SAMPLES = 5, 6, 30
GRAM = StatisticsSpec(gram=True)
# Samples of a client that sends the factor of its Gram matrix: fewer than features.
FEW = 4
FINGERPRINT = "5f" * 32


def scatter_of(rank: str, dtype: str = "float16", *, gram: bool = False) -> StatisticsSpec:
    return StatisticsSpec(gram=gram, scatter=ScatterSpec(RankRule.parse(rank), dtype))


# Two directions of six, in half precision.
SCATTER = scatter_of("2")


def features_and_labels(seed: int = 0, n: int = NUM_SAMPLES) -> tuple[Tensor, Tensor]:
    """Return features (n, 6), of which class 3 of 5 has none."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([0, 1, 2, 4], n)
    return torch.from_numpy(rng.normal(size=(n, DIM)) + labels[:, None]), torch.from_numpy(labels)


def request_for(
    spec: StatisticsSpec = GRAM, *, wire_dtype: str = "float32", fingerprint: str = ""
) -> StatisticsRequest:
    return StatisticsRequest(NUM_CLASSES, spec, wire_dtype=wire_dtype, backbone_fingerprint=fingerprint)


def honest_reply(request: StatisticsRequest, *, seed: int = 0, n: int = NUM_SAMPLES, node: int = 1) -> Message:
    """Return what an honest client answers."""
    msg, made = instruction(request.to_content(), node=node), request.statistics(*features_and_labels(seed, n))
    return statistics_reply(msg, made, backbone_fingerprint=FINGERPRINT, seconds=0.5)


def arrays(content: RecordDict) -> ArrayRecord:
    record = content["statistics"]
    assert isinstance(record, ArrayRecord)
    return record


def values(content: RecordDict, key: str) -> np.ndarray:
    """Return a writable copy of an array of the statistics."""
    return arrays(content)[key].numpy().copy()


def put(content: RecordDict, key: str, array: np.ndarray) -> None:
    arrays(content)[key] = Array(array)


def put_bytes(content: RecordDict, key: str, data: bytes) -> None:
    """Replace what travels, not what Flower's envelope says of it."""
    old = arrays(content)[key]
    arrays(content)[key] = Array(dtype=old.dtype, shape=old.shape, stype=old.stype, data=data)


def header(dtype: str, shape: str) -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n"


def with_header(text: str, body: bytes = b"") -> bytes:
    """Return .npy bytes, version 1.0, with any header."""
    encoded = text.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(encoded).to_bytes(2, "little") + encoded + body


FED3R = Fed3RMethod(Fed3ROptions(ridge_lambda=2.0, normalize=False))
NAMES = tuple("abcde")
REQUEST = training.TrainingRequest(
    NUM_CLASSES,
    "full",
    LocalOptions(epochs=3, batch_size=5, learning_rate=0.2, momentum=0.5, weight_decay=1e-4, flip=True),
    temperature=0.1,
    tune_bias=False,
    seed=4,
    holdout=0.25,
    backbone_fingerprint="abc",
    class_names=NAMES,
)
ARRAYS = {"head.weight": torch.rand(NUM_CLASSES, DIM), "head.bias": torch.zeros(NUM_CLASSES)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in ARRAYS.items()}
MOST = torch.arange(NUM_CLASSES) != 2
HEAD = LinearHead(torch.rand(NUM_CLASSES, DIM).double(), torch.zeros(NUM_CLASSES).double(), MOST)
LEFT_OUT = LeaveOneOut(torch.eye(DIM, dtype=torch.float64), torch.ones(NUM_CLASSES, dtype=torch.float64))
STATISTICS = FeatureStatistics.from_features(*features_and_labels(), NUM_CLASSES)
SETUP = MezoSetup(REQUEST, tuned="norm", epsilon=0.01, num_directions=2, distribution="gaussian")
MEZO_REQUEST = mezo.MezoRequest(0, 2, 6, (Update(5, (0.5, 0.25)),), "curvature", True, setup=SETUP, start=ARRAYS)
MEZO_REPLY = mezo.MezoReply((0.5,), 3, bytes(range(16)))
PARTITION = wire.NodeInfo(1, 3, trains=False, any_app=True, process=2**62, threads=2)
CLASSES = wire.NodeInfo(class_names=("a", "Łódź"), class_ids=(0, 7), trains=False, any_app=True, client_name="é")
COUNTS = training.EvaluationCounts(4, 3, 1.5)
LOSSES = tuple(0.5 + number for number in range(33))
ASKED = instruction(RecordDict())


@dataclass(frozen=True)
class Kind:
    """One kind of message.

    Attributes
    ----------
    make : callable
        Makes the content of a good one.
    reads : callable
        Reads a message of this kind.
    says : object
        What is read in the good one; None where other tests look.
    optional : frozenset of str
        Parts that may be missing.
    """

    make: Callable[[], RecordDict]
    reads: Callable[[Message], object]
    says: object = None
    optional: frozenset[str] = frozenset()
    is_reply: bool = False

    @property
    def refusal(self) -> type[Exception]:
        return wire.RejectedReply if self.is_reply else wire.RejectedRequest

    def good(self) -> RecordDict:
        """Return the content of a good message, made once, whose records can be changed."""
        return copied(_made(self.make))

    def read(self, content: RecordDict) -> object:
        return self.reads(Message(content, reply_to=ASKED) if self.is_reply else instruction(content))


@cache
def _made(make: Callable[[], RecordDict]) -> RecordDict:
    return make()


def copied(content: RecordDict) -> RecordDict:
    """Return a content whose records can be changed; arrays never are."""
    makes: dict[type, Callable[[dict], object]] = {ArrayRecord: ArrayRecord, ConfigRecord: ConfigRecord}
    made = {}
    for name, record in content.items():
        values = dict(record) if isinstance(record, ArrayRecord) else copy.deepcopy(dict(record))
        made[name] = makes.get(type(record), MetricRecord)(values)
    return RecordDict(made)  # type: ignore[arg-type]


def training_content() -> RecordDict:
    content = training.training_content(REQUEST, to_record(ARRAYS), to_record(ARRAYS), server_round=9)
    content["config"]["proximal-mu"] = 0.1  # type: ignore[index,call-overload]
    return content


FEDPROX = replace(REQUEST, options=replace(REQUEST.options, proximal_mu=0.1))


def scores() -> ClientScores:
    """Score 20 samples, of which three of class 3 are said to be taken for no class in particular, and pool 7 more."""
    labels = torch.arange(20) % NUM_CLASSES
    made = HeadScores.zeros(NUM_CLASSES).count(torch.zeros(20, NUM_CLASSES).double(), labels, labels)
    matrix = made.confusion.matrix.clone()
    matrix[3, 3] -= 3
    return ClientScores(ConfusionMatrix(matrix, 7, 5, 3 * (torch.arange(NUM_CLASSES) == 3)), made.margins.filled, 48)


SCORES = scores()


Make, Read = Callable[[], RecordDict], Callable[[Message], object]


def _request(make: Make, reads: Read, says: object = None, optional: str = "") -> Kind:
    return Kind(make, reads, says, frozenset(f"backbone-fingerprint class-names {optional}".split()))


def _reply(make: Callable[[], Message], reads: Read, says: object = None, optional: str = "") -> Kind:
    return Kind(lambda: make().content, reads, says, frozenset(optional.split()), is_reply=True)


def _statistics(request: wire.StatisticsRequest, n: int) -> Kind:
    made, reads = partial(honest_reply, request, n=n), partial(wire.read_statistics_reply, request=request)
    return _reply(made, reads, None, "about backbone-fingerprint")


STATISTICS_REPLIES = {
    "statistics reply": request_for(),
    "statistics reply of few samples": request_for(),
    "statistics reply of exact sums": request_for(StatisticsSpec(gram=True, fraction_bits=8), wire_dtype="float64"),
    "statistics reply in half precision": request_for(wire_dtype="float16"),
    "statistics reply in int8": request_for(wire_dtype="int8"),
    "statistics reply with a factor": request_for(SCATTER),
    "statistics reply with a factor in int8": request_for(scatter_of("2", "int8")),
}
ASKED_FOR = wire.StatisticsRequest(5, GRAM, wire_dtype="float64", seed=2**63 - 1, server_round=7, class_names=NAMES)
FACTOR, OF_HEAD = request_for(SCATTER), " ".join(ARRAYS)
KINDS: dict[str, Kind] = {
    "statistics": _request(ASKED_FOR.to_content, wire.read_statistics_request, ASKED_FOR),
    "statistics with a factor": _request(FACTOR.to_content, wire.read_statistics_request, FACTOR),
    "heads": _request(
        lambda: evaluation.evaluation_content(ASKED_FOR, {"x": HEAD}),
        evaluation.read_evaluation_request,
        (ASKED_FOR, {"x": HEAD}, None),
        "head.x",
    ),
    "leave one out": _request(
        lambda: evaluation.evaluation_content(ASKED_FOR, {"x": HEAD}, LEFT_OUT),
        evaluation.read_evaluation_request,
        (ASKED_FOR, {"x": HEAD}, LEFT_OUT),
        "leave-one-out head.x",
    ),
    "train": _request(
        training_content,
        training.read_training_task,
        training.TrainingTask(FEDPROX, 9, ARRAYS, ARRAYS),
        f"proximal-mu {OF_HEAD}",
    ),
    "mezo": _request(MEZO_REQUEST.to_content, mezo.read_mezo_request, MEZO_REQUEST, f"u p w x setup {OF_HEAD}"),
    "partition": _reply(
        lambda: wire.node_info_reply(ASKED, PARTITION), wire.read_node_info, PARTITION, "trains any-app process threads"
    ),
    "classes": _reply(
        lambda: wire.node_info_reply(ASKED, CLASSES),
        wire.read_node_info,
        CLASSES,
        "trains any-app class-ids client-name",
    ),
    **{
        name: _statistics(request, FEW if "few" in name else NUM_SAMPLES)
        for name, request in STATISTICS_REPLIES.items()
    },
    "heads reply": _reply(
        lambda: evaluation.evaluation_reply(ASKED, {"x": SCORES}),
        lambda reply: evaluation.read_evaluation_reply(reply, wire.StatisticsRequest(NUM_CLASSES), ("x",)),
        None,
        "pooled elsewhere",
    ),
    "train reply": _reply(
        lambda: training.training_reply(ASKED, ARRAYS, num_examples=7, loss=0.25, seconds=1.5),
        lambda reply: training.check_training_reply(reply, SHAPES, 7),
        training.TrainingMetrics(7, 0.25, 1.5),
    ),
    "losses reply": _reply(
        lambda: training.losses_reply(ASKED, LOSSES, 7),
        lambda reply: training.read_losses_reply(reply, 7),
        training.TrainingLosses(LOSSES, 7),
    ),
    "model reply": _reply(lambda: metrics_reply(ASKED, COUNTS), training.read_model_evaluation_reply, COUNTS),
    "mezo reply": _reply(
        partial(mezo.mezo_reply, ASKED, MEZO_REPLY), lambda reply: mezo.read_mezo_reply(reply, 1), MEZO_REPLY
    ),
}
