"""Honest replies, and the tools to forge others from them."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from torch import Tensor

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.statistics import ScatterSpec, StatisticsSpec
from fedstats_app.testing import instruction
from fedstats_app.wire import StatisticsRequest, statistics_reply

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
