"""FedMeZO's messages: a round takes some forty bytes down and thirty-two up, besides what a node has missed.

Requests are one ConfigRecord ``m`` with keys of one letter: ``t`` the training (a run may hold several), ``r`` the
round, ``s`` its seed, ``u`` the updates of the rounds just before it, ``p`` how many steps an update has if not one,
``w`` what is wanted if it is not the round's difference quotients, ``x`` to begin again from the start. A node that
lacks the start gets it as ``setup`` and ``start`` besides, and one that was away longer than a finite pool of seeds is
large gets the pool's sums of steps ``k`` instead of updates. The reply is one record ``m``: the scalars ``g``, the
number of samples ``n`` and the digest ``d`` of the replica; or ``b``, the last round that a node knows where it cannot
do the one that it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.training.zeroth_order.log import Update, pack_updates, unpack_updates
from fedstats_app.training.zeroth_order.replica import DIGEST_BYTES
from fedstats_app.wire.arrays import check_keys
from fedstats_app.wire.errors import RejectedReply, RejectedRequest
from fedstats_app.wire.mezo_setup import MezoSetup, read_setup
from fedstats_app.wire.statistics_checks import MAX_COUNT
from fedstats_app.wire.training import tensors_of, to_record

MEZO = "train.mezo"
EVALUATE_MEZO = "evaluate.mezo"
RECORD = "m"
# Directions along which the curvature is measured, before the first round.
CURVATURE_DIRECTIONS = 8

# Difference quotients; losses by temperature; second differences; the digest alone, once all is done.
Wanted = Literal["", "temperature", "curvature", "sync"]


@dataclass(frozen=True)
class MezoRequest:
    """What a node is asked in one message.

    Attributes
    ----------
    training : int
        Number of the training in the run.
    round : int
        From 1: the replica must have applied the updates of all rounds before it.
    seed : int
        Of its directions.
    updates : tuple of Update
        Of the rounds just before it; as many as the node is thought to lack.
    wanted : {"", "temperature", "curvature", "sync"}
        The round's difference quotients by default.
    restart : bool
        The replica is wrong: begin again from the start.
    coefficients : numpy.ndarray or None
        (K, num_directions) float64, the sums of steps of a finite pool before this round, instead of updates.
    setup : MezoSetup or None
        What to start from, and its head in ``start``, for a node that lacks them.
    start : dict
        ``head.weight`` and ``head.bias``, or empty.
    """

    training: int
    round: int
    seed: int
    updates: tuple[Update, ...] = ()
    wanted: Wanted = ""
    restart: bool = False
    coefficients: NDArray[np.float64] | None = None
    setup: MezoSetup | None = None
    start: Mapping[str, Tensor] = field(default_factory=dict)

    def to_content(self) -> RecordDict:
        """Return the records of a message."""
        record = ConfigRecord({"t": self.training, "r": self.round, "s": self.seed, "u": pack_updates(self.updates)})
        if self.num_directions != 1:
            record["p"] = self.num_directions
        if self.wanted:
            record["w"] = self.wanted
        if self.restart:
            record["x"] = True
        if self.coefficients is not None:
            record["k"] = self.coefficients.astype("<f8").tobytes()
        content = RecordDict({RECORD: record})
        if self.setup is not None:
            content["setup"] = self.setup.to_config()
            content["start"] = to_record(self.start)
        return content

    @property
    def num_directions(self) -> int:
        """Steps of an update."""
        if self.coefficients is not None:
            return int(self.coefficients.shape[1])
        return len(self.updates[-1].steps) if self.updates else 1

    @property
    def round_bytes(self) -> int:
        """Bytes of the question itself and of the last round's update: training, round, seed, seed and steps."""
        return 24 + (8 if self.num_directions != 1 else 0) + (self._update_bytes if self.updates else 0)

    @property
    def catch_up_bytes(self) -> int:
        """Bytes of what the node has missed: the start, earlier updates, a pool's sums."""
        coefficients = 0 if self.coefficients is None else 8 * self.coefficients.size
        start = sum(tensor.numel() * tensor.element_size() for tensor in self.start.values())
        return max(len(self.updates) - 1, 0) * self._update_bytes + coefficients + start

    @property
    def _update_bytes(self) -> int:
        return 8 + 8 * self.num_directions


def read_mezo_request(msg: Message) -> MezoRequest:
    """Return what a message asks for.

    Parameters
    ----------
    msg : Message
        Of type ``train.mezo`` or ``evaluate.mezo``.

    Raises
    ------
    RejectedRequest
        If a key is missing or a value is not allowed.
    """
    try:
        record = _record(msg.content, RECORD)
        setup = read_setup(_record(msg.content, "setup")) if "setup" in msg.content else None
        directions = _whole(record, "p", 1) if "p" in record else 1
        wanted, packed = str(record.get("w", "")), record.get("k")
        if wanted not in get_args(Wanted):
            raise ValueError(f"w must be one of {get_args(Wanted)}, got {wanted!r:.40}")
        updates, number = record["u"], _whole(record, "r", 1)
        if not isinstance(updates, bytes) or not isinstance(packed, bytes | None):
            raise TypeError("u and k must be bytes")
        coefficients = None if packed is None else np.frombuffer(packed, dtype="<f8").reshape(-1, directions)
        return MezoRequest(
            training=_whole(record, "t", 0),
            round=number,
            seed=_whole(record, "s", 0),
            updates=tuple(unpack_updates(updates, directions)),
            wanted=wanted,  # type: ignore[arg-type]  # checked above
            restart=bool(record.get("x", False)),
            coefficients=coefficients,
            setup=setup,
            start=tensors_of(msg.content, "start") if setup is not None else {},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RejectedRequest(f"not a request of FedMeZO: {type(error).__name__}: {error!s:.200}") from error


@dataclass(frozen=True)
class MezoReply:
    """A node's answer.

    Attributes
    ----------
    scalars : tuple of float
        Difference quotients, one per direction, or losses, or second differences; empty without samples and for "sync".
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


@dataclass(frozen=True)
class Behind:
    """A node cannot do the round: it knows the rounds up to this one, -1 if not even the start."""

    round: int


def mezo_reply(msg: Message, answer: MezoReply | Behind) -> Message:
    """Return the reply of a node."""
    if isinstance(answer, Behind):
        return Message(RecordDict({RECORD: ConfigRecord({"b": answer.round})}), reply_to=msg)
    scalars = np.array(answer.scalars, dtype="<f8").tobytes()
    record = ConfigRecord({"g": scalars, "n": answer.num_examples, "d": answer.digest})
    return Message(RecordDict({RECORD: record}), reply_to=msg)


def read_mezo_reply(reply: Message, num_scalars: int, num_examples: int | None = None) -> MezoReply | Behind:
    """Return what a node answered.

    Parameters
    ----------
    reply : Message
        From anybody.
    num_scalars : int
        That were asked for.
    num_examples : int, optional
        How many samples the client had when it sent its statistics: it must have as many now.

    Raises
    ------
    RejectedReply
        If it failed, or says something that cannot be or cannot be used, a scalar that is not finite among it.
    """
    if reply.has_error():
        raise RejectedReply(reply.error.reason or f"error code {reply.error.code}")
    check_keys("reply", reply.content, {RECORD})
    record = reply.content[RECORD]
    if not isinstance(record, ConfigRecord):
        raise RejectedReply(f"{RECORD}: must be a ConfigRecord, got {type(record).__name__}")
    if "b" in record:
        check_keys(RECORD, record, {"b"})
        known = record["b"]
        if type(known) is not int or not -1 <= known < 2**62:
            raise RejectedReply(f"b: must be a round, or -1, got {known!r:.40}")
        return Behind(known)
    check_keys(RECORD, record, {"g", "n", "d"})
    scalars, count, digest = record["g"], record["n"], record["d"]
    if type(count) is not int or not 0 <= count <= MAX_COUNT or (num_examples is not None and count != num_examples):
        allowed = f"in [0, {MAX_COUNT}]" if num_examples is None else f"{num_examples}"
        raise RejectedReply(f"n: must be a whole number, {allowed}, got {count!r:.40}")
    expected = 8 * num_scalars if count else 0
    if not isinstance(scalars, bytes) or len(scalars) != expected:
        raise RejectedReply(f"g: must be {expected} bytes, {num_scalars} scalar(s) of {count} samples")
    if not isinstance(digest, bytes) or len(digest) != DIGEST_BYTES:
        raise RejectedReply(f"d: must be {DIGEST_BYTES} bytes")
    values = tuple(float(value) for value in np.frombuffer(scalars, dtype="<f8"))
    if not all(math.isfinite(value) for value in values):
        raise RejectedReply(f"g: must be finite, got {values}")
    return MezoReply(values, count, digest)


def _record(content: RecordDict, name: str) -> ConfigRecord:
    record = content[name]
    if not isinstance(record, ConfigRecord):
        raise TypeError(f"{name} must be a ConfigRecord, got {type(record).__name__}")
    return record


def _whole(record: ConfigRecord, key: str, least: int) -> int:
    value = record[key]
    if type(value) is not int or not least <= value < 2**63:
        raise ValueError(f"{key} must be a whole number of at least {least}, got {value!r:.40}")
    return value
