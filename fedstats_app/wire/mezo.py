"""FedMeZO's messages: a round takes about forty bytes down and thirty-two up, besides the updates that a node missed.

Requests are one ConfigRecord ``m`` with keys of one letter: ``t`` the training (a run may hold several), ``r`` the
round, ``s`` its seed, ``u`` the updates of the rounds just before it, ``p`` the number of steps of an update if not 1,
``w`` the kind of request if it is not for the round's difference quotients, ``x`` to begin again from the start. A node
that lacks the start also gets the records ``setup`` and ``start``. The reply is one record ``m``: the scalars ``g``,
the number of samples ``n`` and the digest ``d`` of the replica, zeros if the node cannot do the round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from fedstats_app.fedmezo.log import Update, pack_updates, unpack_updates
from fedstats_app.fedmezo.replica import DIGEST_BYTES
from fedstats_app.fedmezo.setup import MAX_DIRECTIONS, MezoSetup
from fedstats_app.wire.arrays import read_tensors, to_record
from fedstats_app.wire.reading import (
    LARGEST_WHOLE,
    MAX_COUNT,
    Malformed,
    check_keys,
    counted,
    from_values,
    optional,
    reads_replies,
    reads_requests,
    record_of,
    to_values,
    typed,
    whole,
)

MEZO = "train.mezo"
EVALUATE_MEZO = "evaluate.mezo"
RECORD = "m"
# Directions along which the curvature is measured, before the first round.
CURVATURE_DIRECTIONS = 8
# A larger number is no slope, and its square or sum could overflow.
MAX_SCALAR = 1e30

# Difference quotients; second differences; the digest alone, once all is done.
Wanted = Literal["", "curvature", "sync"]


@dataclass(frozen=True)
class MezoRequest:
    """Request to a node.

    Attributes
    ----------
    training : int
        Number of the training in the run.
    round : int
        From 1: the replica must have applied the updates of all rounds before it.
    seed : int
        Of its directions.
    updates : tuple of Update
        Of the rounds just before it: those that the node lacks as far as the server knows.
    wanted : {"", "curvature", "sync"}
        The round's difference quotients by default.
    restart : bool
        The replica is wrong: begin again from the start.
    setup : MezoSetup or None
        For a node that lacks it.
    start : dict
        ``head.weight`` and ``head.bias``, or the state of a user's model; empty without setup.
    """

    training: int = counted(LARGEST_WHOLE, key="t", default=MISSING)
    round: int = counted(LARGEST_WHOLE, low=1, key="r", default=MISSING)
    seed: int = counted(LARGEST_WHOLE, key="s", default=MISSING)
    updates: tuple[Update, ...] = field(default=(), metadata={"apart": True})
    wanted: Wanted = optional("", "w")  # noqa: RUF009  # a text
    restart: bool = optional(False, "x")
    setup: MezoSetup | None = field(default=None, metadata={"apart": True})
    start: Mapping[str, Tensor] = field(default_factory=dict, metadata={"apart": True})

    def to_content(self) -> RecordDict:
        """Write the records of a message."""
        record = ConfigRecord(to_values(self))
        if self.updates:  # Flower's message_size_mod takes no empty bytes
            record["u"] = pack_updates(self.updates)
        if self.num_directions != 1:
            record["p"] = self.num_directions
        content = RecordDict({RECORD: record})
        if self.setup is not None:
            content["setup"] = ConfigRecord(to_values(self.setup))
            content["start"] = to_record(self.start)
        return content

    @property
    def num_directions(self) -> int:
        """Steps of an update."""
        return len(self.updates[-1].steps) if self.updates else 1

    @property
    def round_bytes(self) -> int:
        """Bytes of the request itself and of the last round's update: training, round, seed, seed and steps."""
        return 24 + (8 if self.num_directions != 1 else 0) + (self._update_bytes if self.updates else 0)

    @property
    def catch_up_bytes(self) -> int:
        """Bytes of the start and of earlier updates, which the node has missed."""
        start = sum(tensor.numel() * tensor.element_size() for tensor in self.start.values())
        return max(len(self.updates) - 1, 0) * self._update_bytes + start

    @property
    def _update_bytes(self) -> int:
        return 8 + 8 * self.num_directions


@reads_requests("of FedMeZO")
def read_mezo_request(msg: Message) -> MezoRequest:
    """Read a message of type ``train.mezo`` or ``evaluate.mezo``."""
    content, record = msg.content, record_of(msg.content, RECORD, ConfigRecord)
    directions = whole({"p": 1, **record}, "p", 1, MAX_DIRECTIONS)
    updates = tuple(unpack_updates(typed({"u": b"", **record}, "u", bytes), directions))
    if "setup" not in content:
        return from_values(MezoRequest, record, updates=updates)
    setup = from_values(MezoSetup, record_of(content, "setup", ConfigRecord))
    start = read_tensors(content, "start", torch.float32, torch.float64, torch.int64)
    return from_values(MezoRequest, record, updates=updates, setup=setup, start=start)


@dataclass(frozen=True)
class MezoReply:
    """A node's answer: 32 bytes with one scalar.

    Attributes
    ----------
    scalars : tuple of float
        Difference quotients, one per direction, or second differences; empty without samples and for "sync".
    num_examples : int
        Samples that they are means over.
    digest : bytes
        16 bytes, of the replica that they were measured on.
    """

    scalars: tuple[float, ...]
    num_examples: int
    digest: bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of scalars, count and digest."""
        return 8 * len(self.scalars) + 8 + len(self.digest)


# Of a node that cannot do the round, because it knows no start or misses rounds: no replica has this digest.
UNKNOWN = MezoReply((), 0, bytes(DIGEST_BYTES))


def mezo_reply(msg: Message, answer: MezoReply) -> Message:
    """Write a node's reply."""
    record = ConfigRecord({"n": answer.num_examples, "d": answer.digest})
    if answer.scalars:
        record["g"] = np.array(answer.scalars, dtype="<f8").tobytes()
    return Message(RecordDict({RECORD: record}), reply_to=msg)


@reads_replies
def read_mezo_reply(reply: Message, num_scalars: int, num_examples: int | None = None) -> MezoReply:
    """Read a reply to a request for ``num_scalars`` scalars; one that is not finite is refused.

    With ``num_examples``, the client must still have that number of samples, as when it sent its statistics.
    """
    check_keys("reply", reply.content, {RECORD})
    record = record_of(reply.content, RECORD, ConfigRecord)
    check_keys(RECORD, record, {"n", "d"}, {"g"})
    digest = _bytes(record, "d", DIGEST_BYTES)
    if digest == UNKNOWN.digest:
        return UNKNOWN
    low, high = (0, MAX_COUNT) if num_examples is None else (num_examples, num_examples)
    count = whole(record, "n", low, high)
    values = tuple(
        np.frombuffer(_bytes({"g": b"", **record}, "g", 8 * num_scalars if count else 0), dtype="<f8").tolist()
    )
    if not all(abs(value) <= MAX_SCALAR for value in values):
        raise Malformed(f"g: must be finite and at most {MAX_SCALAR:g} in size, got {values}")
    return MezoReply(values, count, digest)


def _bytes(record: Mapping[str, Any], key: str, number: int) -> bytes:
    value = typed(record, key, bytes)
    if len(value) != number:
        raise Malformed(f"{key}: must be {number} bytes, got {len(value)}")
    return value
