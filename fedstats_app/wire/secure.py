"""``query.secure_keys``, ``_shares``, ``_sums``, ``_noisy`` and ``_unmask``: sums of which no client's part is seen.

And ``query.noisy_sums`` and ``query.clear_sums``, without masks: sums with all the noise of a release, and with none.

Those with masks name the run of masks by its ``nonce``; from the second on they carry every party's keys. No torch is
imported here but where words of statistics are read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedstats_app.secure.masks import KEY_BYTES
from fedstats_app.secure.party import SEALED_BYTES
from fedstats_app.secure.plan import IDENTITY_BYTES, MOST_ROUNDS, SIGNATURE_BYTES, Plan, PublicKeys
from fedstats_app.secure.shamir import SHARE_BYTES
from fedstats_app.wire.keeping import content_digest
from fedstats_app.wire.reading import (
    LARGEST_WHOLE,
    MAX_COUNT,
    Malformed,
    check_keys,
    counted,
    from_record,
    list_of,
    measured,
    reads_replies,
    reads_requests,
    record_of,
    to_values,
    typed,
)

if TYPE_CHECKING:
    from torch import Tensor

    from fedstats_app.statistics.secure_words import Unsigned, Words
    from fedstats_app.wire.statistics import StatisticsRequest

SECURE_KEYS, SECURE_SHARES = "query.secure_keys", "query.secure_shares"
SECURE_SUMS, SECURE_NOISY, SECURE_UNMASK = "query.secure_sums", "query.secure_noisy", "query.secure_unmask"
NOISY_SUMS, CLEAR_SUMS = "query.noisy_sums", "query.clear_sums"
# Of one run of masks.
MOST_PARTIES = 20_000
# Earlier sums, of all parties' data together, and their bytes.
MOST_SETS, MOST_HISTORY_BYTES = 100_000, 2**24
# Beyond, noise hides nothing.
MOST_MU = 1000.0
# What every message of a run of masks has, once its words are asked for.
_OF_ROUND = ("round", "table", "active")


@dataclass(frozen=True)
class Round:
    """One round of masks.

    Attributes
    ----------
    nonce : bytes
        Of the run of masks.
    rounds : int
        That it has.
    turn : int
        Which one this is.
    """

    nonce: bytes
    rounds: int = counted(MOST_ROUNDS, low=1)
    turn: int = counted(MOST_ROUNDS - 1)

    def __post_init__(self) -> None:
        if len(self.nonce) != KEY_BYTES:
            raise ValueError(f"nonce must be {KEY_BYTES} bytes, got {len(self.nonce)}")


@dataclass(frozen=True)
class SumRequest:
    """Request for a sum, beside the request for statistics.

    Attributes
    ----------
    kind : str
        As :mod:`fedstats_app.statistics.secure_words` has it.
    gram : str
        Likewise.
    narrow : bool
        Whether class sums have 32 bits.
    most_samples : int
        Of one client.
    norm : float
        Of the longest feature.
    most_lost : int
        Clients that may be lost since it is known who has which class: classes of which too few would be left stay out.
    """

    kind: Literal["presence", "sums", "scatter", "spread", "product1", "product2", "product3"]
    gram: Literal["none", "triangle", "exact", "means-1", "means-2", "means-3"]
    narrow: bool
    most_samples: int = counted(LARGEST_WHOLE, low=1)
    norm: float = 1.0
    most_lost: int = counted(MAX_COUNT, optional=True)


@dataclass(frozen=True)
class NoisyRequest:
    """Request for a sum with noise, beside the request for statistics.

    Attributes
    ----------
    kind : str
        As :mod:`fedstats_app.statistics.noisy_words` has it.
    mu : float
        Of all parts of the run together; each node divides it itself.
    clip : float
        To which length, in samples, a client cuts each of its sums, and of how many the noise hides one; 0: it hides
        one sample.
    """

    kind: Literal["mean", "moments"]
    mu: float = measured(MOST_MU)
    clip: float = measured()

    def __post_init__(self) -> None:
        if not self.mu > 0:
            raise ValueError(f"mu must be above 0, got {self.mu}")


Asked = TypeVar("Asked", SumRequest, NoisyRequest)


def keys_content(round_: Round) -> RecordDict:
    """Ask for a party's keys."""
    return RecordDict({"round": ConfigRecord(to_values(round_))})


@reads_requests("for keys of secure sums")
def read_keys_request(msg: Message) -> Round:
    """Read ``query.secure_keys``."""
    check_keys("request", msg.content, {"round"}, {"clients"})
    return from_record(Round, msg.content, "round", ConfigRecord)


def keys_reply(msg: Message, keys: PublicKeys, history: Sequence[bytes]) -> Message:
    """Answer ``query.secure_keys``: with each earlier sum of the same data, its kind, ``|``, and who was in it."""
    record = ConfigRecord({"history": list(history)})
    return Message(RecordDict({"keys": ConfigRecord({"keys": keys.to_bytes()}), "history": record}), reply_to=msg)


def keys_reader(rounds: int) -> Callable[[Message], tuple[PublicKeys, list[bytes]]]:
    """Make what reads a party's keys, and in which sums its data were."""

    @reads_replies
    def read(reply: Message) -> tuple[PublicKeys, list[bytes]]:
        check_keys("reply", reply.content, {"keys", "history"})
        found = PublicKeys.from_bytes(_bytes(reply.content, "keys"), rounds)
        found.check()
        return found, _history(reply.content)

    return read


def _history(content: RecordDict) -> list[bytes]:
    sets = list_of(record_of(content, "history", ConfigRecord, {"history"}), "history", bytes, MOST_SETS)
    if (size := sum(map(len, sets))) > MOST_HISTORY_BYTES:
        raise Malformed(f"history: must be of at most {MOST_HISTORY_BYTES} bytes, got {size}")
    for parties in sets:
        if not (ids := parties.partition(b"|")[2]) or len(ids) % IDENTITY_BYTES or not parties.split(b"|")[0].isalpha():
            raise Malformed(f"history: must be of kinds of sums and identities, got {parties[:20]!r}")
    return sets


def parties_in(history: Sequence[str], kind: str) -> list[list[str]]:
    """Return who was in each sum of a kind, of a history in hexadecimal digits, each by 32 of them."""
    prefix, digits = f"{kind}|".encode().hex(), 2 * IDENTITY_BYTES
    sums = [entry.removeprefix(prefix) for entry in history if entry.startswith(prefix)]
    return [[ids[start : start + digits] for start in range(0, len(ids), digits)] for ids in sums]


def shares_content(plan: Plan, history: Sequence[bytes]) -> RecordDict:
    """Ask for sealed shares, and say in which sums the data of all parties were before."""
    content = plan_content(plan)
    content["history"] = ConfigRecord({"history": list(history)})
    return content


def plan_content(plan: Plan, turn: int = 0) -> RecordDict:
    """Make the beginning of every message from the second on."""
    content = keys_content(Round(plan.nonce, plan.rounds, turn))
    content["table"] = ConfigRecord({"keys": plan.table})
    return content


# A worker reads the same plan again for every client.
_plan_of = functools.lru_cache(maxsize=2)(Plan.from_bytes)


def _read_plan(content: RecordDict) -> tuple[Plan, int]:
    named = from_record(Round, content, "round", ConfigRecord)
    table = typed(record_of(content, "table", ConfigRecord, {"keys"}), "keys", bytes)
    if len(table) > MOST_PARTIES * PublicKeys.size(named.rounds):
        raise Malformed(f"table: must be of at most {MOST_PARTIES} parties, got {len(table)} bytes")
    if named.turn >= named.rounds:
        raise Malformed(f"turn: must be below {named.rounds}, got {named.turn}")
    return _plan_of(named.nonce, named.rounds, table), named.turn


@reads_requests("for shares of keys")
def read_shares_request(msg: Message) -> tuple[Plan, list[bytes]]:
    """Read ``query.secure_shares``."""
    check_keys("request", msg.content, {"round", "table", "history"}, {"clients"})
    return _read_plan(msg.content)[0], _history(msg.content)


def shares_reply(msg: Message, sealed: Sequence[bytes]) -> Message:
    """Answer ``query.secure_shares``."""
    return Message(RecordDict({"sealed": ConfigRecord({"sealed": b"".join(sealed)})}), reply_to=msg)


def shares_reader(plan: Plan) -> Callable[[Message], list[bytes]]:
    """Make what reads, for each round, the sealed shares for all neighbours."""

    @reads_replies
    def read(reply: Message) -> list[bytes]:
        check_keys("reply", reply.content, {"sealed"})
        sealed = _bytes(reply.content, "sealed")
        size = SEALED_BYTES * len(plan.neighbours(0))
        if len(sealed) != size * plan.rounds:
            raise Malformed(f"sealed: must be {size * plan.rounds} bytes, got {len(sealed)}")
        return [sealed[turn * size : (turn + 1) * size] for turn in range(plan.rounds)]

    return read


def sums_content(
    plan: Plan,
    turn: int,
    active: Sequence[int],
    request: StatisticsRequest,
    sum_request: SumRequest | NoisyRequest,
    known: Mapping[str, Tensor],
) -> RecordDict:
    """Ask for masked words, by ``query.secure_sums`` or ``query.secure_noisy``.

    Parameters
    ----------
    plan, turn, active
        The run of masks, the round, and its parties.
    request : StatisticsRequest
        Of one specification, whose features are rounded where there is no noise.
    asked : SumRequest or NoisyRequest
        What is summed of them.
    known : mapping
        ``holders`` (C,) int64, clients with each class, after the first sum; after the second ``means`` (C, d) float32,
        and ``weights`` (C,) float64 for the spread, else ``scales`` (d,) float32, and ``directions`` (d, k) float32 for
        a product. With noise ``mean`` (d,) float64 for the second sum.
    """
    content = plan_content(plan, turn)
    content["active"] = ConfigRecord({"parties": list(active)})
    content.update(clear_content(request, sum_request, known))
    return content


def clear_content(
    request: StatisticsRequest, sum_request: SumRequest | NoisyRequest, known: Mapping[str, Tensor]
) -> RecordDict:
    """Ask for words without masks, by ``query.noisy_sums`` or ``query.clear_sums``: as :func:`sums_content`."""
    from fedstats_app.wire.arrays import to_record

    content = RecordDict({"request": request.to_content()["request"], "known": to_record(known)})
    content["sum" if isinstance(sum_request, SumRequest) else "noisy"] = ConfigRecord(to_values(sum_request))
    return content


def asked_digest(content: RecordDict) -> str:
    """Return the SHA-256 of what words are asked for, 64 hex digits, from a message to one client or to all.

    Records come over the network in any order of their keys.
    """
    plain = {name: content.config_records[name] for name in ("request", "sum", "noisy") if name in content}
    found = {name: ConfigRecord(dict(sorted(record.items()))) for name, record in plain.items()}
    return content_digest({**found, "known": ArrayRecord(dict(sorted(content.array_records["known"].items())))})


def _read_asked(
    content: RecordDict, name: str, kind: type[Asked], others: tuple[str, ...] = _OF_ROUND
) -> tuple[StatisticsRequest, Asked]:
    from fedstats_app.wire.reading import from_values
    from fedstats_app.wire.statistics import StatisticsRequest

    check_keys("request", content, {*others, "request", name, "known"}, {"clients"})
    request = from_values(StatisticsRequest, record_of(content, "request", ConfigRecord))
    return request, from_record(kind, content, name, ConfigRecord)


def _read_round(content: RecordDict) -> tuple[Plan, int, list[int]]:
    plan, turn = _read_plan(content)
    return plan, turn, _parties(content, "active", plan)


@reads_requests("for masked sums")
def read_sums_request(
    msg: Message,
) -> tuple[Plan, int, list[int], StatisticsRequest, SumRequest, dict[str, Tensor]]:
    """Read ``query.secure_sums``."""
    import torch

    from fedstats_app.statistics import StatisticsSpec
    from fedstats_app.wire.arrays import MAX_FEATURE_DIM, read_array

    request, sum_request = _read_asked(msg.content, "sum", SumRequest)
    if request.spec != StatisticsSpec(request.spec.gram, fraction_bits=request.spec.fraction_bits or 0):
        raise Malformed("specification: must be of gram and fraction-bits")
    number, known = request.num_classes, record_of(msg.content, "known", ArrayRecord)
    shapes: dict[str, tuple[torch.dtype, tuple[int | range, ...]]] = {}
    if sum_request.kind != "presence":
        shapes["holders"] = torch.int64, (number,)
    dim, is_product = range(1, MAX_FEATURE_DIM + 1), sum_request.kind.startswith("product")
    if sum_request.kind not in ("presence", "sums"):
        shapes["means"] = torch.float32, (number, dim)
    if sum_request.kind == "scatter" or is_product:
        shapes["scales"] = torch.float32, (dim,)
    if is_product:
        shapes["directions"] = torch.float32, (dim, dim)
    if sum_request.kind == "spread":
        shapes["weights"] = torch.float64, (number,)
    check_keys("known", known, set(shapes))
    values = {name: read_array(known, name, *shape) for name, shape in shapes.items()}
    return *_read_round(msg.content), request, sum_request, values


@reads_requests("for masked sums with noise")
def read_noisy_request(msg: Message) -> tuple[Plan, int, list[int], StatisticsRequest, NoisyRequest, Tensor | None]:
    """Read ``query.secure_noisy``."""
    return *_read_round(msg.content), *_read_noisy(msg.content, _OF_ROUND)


@reads_requests("for sums with noise")
def read_clear_request(msg: Message) -> tuple[StatisticsRequest, NoisyRequest, Tensor | None]:
    """Read ``query.noisy_sums`` or ``query.clear_sums``."""
    return _read_noisy(msg.content, ())


def _read_noisy(content: RecordDict, others: tuple[str, ...]) -> tuple[StatisticsRequest, NoisyRequest, Tensor | None]:
    import torch

    from fedstats_app.statistics import StatisticsSpec
    from fedstats_app.wire.arrays import MAX_FEATURE_DIM, read_array

    request, sum_request = _read_asked(content, "noisy", NoisyRequest, others)
    if request.spec != StatisticsSpec(request.spec.gram) or request.holdout:
        raise Malformed("specification: must be of gram alone, of all samples")
    known = record_of(content, "known", ArrayRecord, set() if sum_request.kind == "mean" else {"mean"})
    mean = read_array(known, "mean", torch.float64, (range(1, MAX_FEATURE_DIM + 1),)) if known else None
    return request, sum_request, mean


def sums_reply(msg: Message, words: Words) -> Message:
    """Answer ``query.secure_sums``, or another question for words."""
    from fedstats_app.statistics.secure_words import as_signed
    from fedstats_app.wire.arrays import to_record

    arrays = {str(place): array for place, array in enumerate(as_signed(words))}
    return Message(RecordDict({"words": to_record(arrays)}), reply_to=msg)


def words_reader(shapes: Sequence[tuple[int, Unsigned]]) -> Callable[[Message], Words]:
    """Make what reads words of these lengths and types."""
    import torch

    from fedstats_app.statistics.secure_words import as_unsigned
    from fedstats_app.wire.arrays import read_array

    signed = {2: torch.int16, 4: torch.int32, 8: torch.int64}

    @reads_replies
    def read(reply: Message) -> Words:
        check_keys("reply", reply.content, {"words"})
        record = record_of(reply.content, "words", ArrayRecord, {str(place) for place in range(len(shapes))})
        return as_unsigned(
            [
                read_array(record, str(place), signed[kind.itemsize], (number,))
                for place, (number, kind) in enumerate(shapes)
            ]
        )

    return read


def unmask_content(
    plan: Plan, turn: int, active: Sequence[int], survivors: Sequence[int], sealed: bytes, signatures: bytes = b""
) -> RecordDict:
    """Ask a survivor for its shares of its neighbours' keys, of which the sealed ones come along.

    Among peers first for a signature of who is in the sum, then with the signatures of all survivors.
    """
    content = plan_content(plan, turn)
    content["active"] = ConfigRecord({"parties": list(active)})
    content["survivors"] = ConfigRecord({"parties": list(survivors)})
    content["sealed"] = ConfigRecord({"sealed": sealed})
    content["signatures"] = ConfigRecord({"signatures": signatures})
    return content


@reads_requests("to unmask a sum")
def read_unmask_request(msg: Message) -> tuple[Plan, int, list[int], list[int], list[bytes], list[bytes]]:
    """Read ``query.secure_unmask``: plan, round, its parties, survivors, what neighbours sealed, and signatures."""
    content = msg.content
    check_keys("request", content, {"round", "table", "active", "survivors", "sealed", "signatures"}, {"clients"})
    plan, turn = _read_plan(content)
    parts, signatures = _parts(content, "sealed", SEALED_BYTES), _parts(content, "signatures", SIGNATURE_BYTES)
    return plan, turn, _parties(content, "active", plan), _parties(content, "survivors", plan), parts, signatures


def unmask_reply(msg: Message, shares: Sequence[bytes], signature: bytes = b"") -> Message:
    """Answer ``query.secure_unmask``: a share for each neighbour in the round, ascending, or a signature."""
    found = {"shares": b"".join(shares), "signature": signature}
    return Message(RecordDict({name: ConfigRecord({name: value}) for name, value in found.items()}), reply_to=msg)


@reads_replies
def read_unmask_reply(reply: Message) -> tuple[list[bytes], bytes]:
    """Read the shares, and the signature."""
    check_keys("reply", reply.content, {"shares", "signature"})
    signature = _bytes(reply.content, "signature")
    if len(signature) not in (0, SIGNATURE_BYTES):
        raise Malformed(f"signature: must be of {SIGNATURE_BYTES} bytes or none, got {len(signature)}")
    return _parts(reply.content, "shares", SHARE_BYTES), signature


def _parts(content: RecordDict, name: str, size: int) -> list[bytes]:
    found = _bytes(content, name)
    if len(found) % size:
        raise Malformed(f"{name}: must be a multiple of {size} bytes, got {len(found)}")
    return [found[start : start + size] for start in range(0, len(found), size)]


def _bytes(content: RecordDict, name: str) -> bytes:
    return typed(record_of(content, name, ConfigRecord, {name}), name, bytes)


def _parties(content: RecordDict, name: str, plan: Plan) -> list[int]:
    return list_of(record_of(content, name, ConfigRecord, {"parties"}), "parties", int, len(plan.parties))
