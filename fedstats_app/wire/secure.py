"""``query.secure_keys``, ``_shares``, ``_sums``, ``_scores``, ``_noisy`` and ``_unmask``: sums that hide their parts.

And ``query.noisy_sums``, without masks: sums with all the noise of a release. All that is asked for stands in the first
message; those after it name the run of masks by its ``nonce``, and carry every party's entry. No torch is imported here
but where requests for statistics and words are read.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedstats_app.secure.masks import KEY_BYTES, Words
from fedstats_app.secure.party import SEALED_BYTES
from fedstats_app.secure.plan import MOST_EARLIER, MOST_ROUNDS, SIGNATURE_BYTES, Entry, Plan
from fedstats_app.secure.sets import check_set, digest_of_set
from fedstats_app.secure.shamir import SHARE_BYTES
from fedstats_app.wire.reading import (
    LARGEST_WHOLE,
    MAX_COUNT,
    Malformed,
    RejectedRequest,
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

    from fedstats_app.statistics.secure_words import Shapes
    from fedstats_app.wire.statistics import StatisticsRequest

SECURE_KEYS, SECURE_SHARES = "query.secure_keys", "query.secure_shares"
SECURE_SUMS, SECURE_SCORES = "query.secure_sums", "query.secure_scores"
SECURE_NOISY, SECURE_UNMASK = "query.secure_noisy", "query.secure_unmask"
NOISY_SUMS = "query.noisy_sums"
# Of a kind of sum, before the digest of the heads.
SCORES = "scores"
# In class lists, of no class: scores of samples held out are of all of them together.
HELD_OUT = "(samples held out)"
# Of one run of masks.
MOST_PARTIES = 20_000
# Earlier sums of all parties' data together.
MOST_SET_BYTES = 2**24
# Beyond, noise hides nothing.
MOST_MU = 1000.0


@dataclass(frozen=True)
class Round:
    """One round of masks.

    Attributes
    ----------
    nonce : bytes
        Of the run of masks.
    rounds : int
        That it has.
    num_classes : int
        Length of class lists; 0 where noise hides them.
    turn : int
        Which one this is.
    """

    nonce: bytes
    rounds: int = counted(MOST_ROUNDS, low=1)
    num_classes: int = counted(MAX_COUNT)
    turn: int = counted(MOST_ROUNDS - 1)

    def __post_init__(self) -> None:
        if len(self.nonce) != KEY_BYTES:
            raise ValueError(f"nonce must be {KEY_BYTES} bytes, got {len(self.nonce)}")


@dataclass(frozen=True)
class SumRequest:
    """Request for a sum, beside the request for statistics: in which words it travels.

    Attributes
    ----------
    samples : int
        As many as all clients can have together.
    norm : float
        Of the longest feature.
    spread : bool
        Whether products of clients' class means are summed too, for FedCOF.
    """

    samples: int = counted(LARGEST_WHOLE, low=1)
    norm: float = measured()
    spread: bool = False


@dataclass(frozen=True)
class NoisyRequest:
    """Request for sums with noise, beside the request for statistics.

    Attributes
    ----------
    mu : float
        Of all parts of the run together; each node divides it itself.
    """

    mu: float = measured(MOST_MU)

    def __post_init__(self) -> None:
        if not self.mu > 0:
            raise ValueError(f"mu must be above 0, got {self.mu}")


def question_text(request: StatisticsRequest, sum_request: SumRequest | NoisyRequest) -> str:
    """Write all that a run asks for; who was asked the same has the same text."""
    kind = "sum" if isinstance(sum_request, SumRequest) else "noisy"
    return json.dumps({"request": to_values(request), kind: to_values(sum_request)}, sort_keys=True)


def read_question(text: str) -> tuple[StatisticsRequest, SumRequest | NoisyRequest]:
    """Read what :func:`question_text` wrote.

    Raises
    ------
    RejectedRequest
        If it is no such text, or asks for statistics that do not add up.
    """
    from fedstats_app.data.targets import EVERY_SAMPLE
    from fedstats_app.statistics import StatisticsSpec
    from fedstats_app.wire.reading import from_values
    from fedstats_app.wire.statistics import StatisticsRequest

    try:
        values = json.loads(text)
        is_noisy = "noisy" in values
        check_keys("question", values, {"request", "noisy" if is_noisy else "sum"})
        request = from_values(StatisticsRequest, values["request"])
        found = from_values(NoisyRequest, values["noisy"]) if is_noisy else from_values(SumRequest, values["sum"])
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RejectedRequest(f"not a question for sums: {error!s:.300}") from error
    bits = request.spec.fraction_bits
    targets = "" if is_noisy or request.spec.targets != "labels" else "labels"
    if request.spec != StatisticsSpec(request.spec.gram, fraction_bits=bits, targets=targets):
        raise RejectedRequest("not a question for sums: it must be of counts, sums and gram")
    if request.holdout and (is_noisy or targets):
        raise RejectedRequest("not a question for sums: with noise or labels it must be of all samples")
    if HELD_OUT in request.class_names:
        # Sums with and without such samples would not be told apart.
        raise RejectedRequest(f"not a question for sums: no class has the name {HELD_OUT!r}")
    if targets and request.class_names[:1] != (EVERY_SAMPLE,):
        # Who is in the sum of all samples is kept account of by this name.
        raise RejectedRequest(f"not a question for sums: labels begin with {EVERY_SAMPLE!r}")
    if (bits is None) != is_noisy:
        raise RejectedRequest("not a question for sums: fraction-bits must be given, but not with noise")
    return request, found


def class_names_in(question: str) -> list[str]:
    """Return the names in class lists for a question that :func:`read_question` took; without torch.

    They are the class names, or numbers, and where samples are held out a name for all these.
    """
    request = json.loads(question)["request"]
    names = request.get("class-names") or [str(number) for number in range(request["num-classes"])]
    return [*names, HELD_OUT] if request.get("holdout") else list(names)


def keys_content(round_: Round, question: str) -> RecordDict:
    """Ask for a party's entry in the plan."""
    return RecordDict({"round": ConfigRecord(to_values(round_)), "question": ConfigRecord({"question": question})})


@reads_requests("for keys of secure sums")
def read_keys_request(msg: Message) -> tuple[Round, str]:
    """Read ``query.secure_keys``."""
    check_keys("request", msg.content, {"round", "question"}, {"clients"})
    return from_record(Round, msg.content, "round", ConfigRecord), _text(msg.content)


def _text(content: RecordDict) -> str:
    return typed(record_of(content, "question", ConfigRecord, {"question"}), "question", str)


def keys_reply(msg: Message, entry: Entry, sets: Sequence[bytes]) -> Message:
    """Answer ``query.secure_keys``: with the sets of parties of each earlier sum of the same data."""
    content = RecordDict({"entry": ConfigRecord({"entry": entry.to_bytes()})})
    content["sets"] = ConfigRecord({"sets": list(sets)})
    return Message(content, reply_to=msg)


def keys_reader(rounds: int, num_classes: int) -> Callable[[Message], tuple[Entry, list[bytes]]]:
    """Make what reads a party's entry, and the sets that it names."""

    @reads_replies
    def read(reply: Message) -> tuple[Entry, list[bytes]]:
        check_keys("reply", reply.content, {"entry", "sets"})
        found = Entry.from_bytes(_bytes(reply.content, "entry"), rounds, num_classes)
        found.check()
        return found, _sets(reply.content, [found], MOST_EARLIER)

    return read


def _sets(content: RecordDict, parties: Sequence[Entry], most: int | None = None) -> list[bytes]:
    """Read the sets of earlier sums: exactly those that some parties name."""
    sets = list_of(record_of(content, "sets", ConfigRecord, {"sets"}), "sets", bytes, most)
    if (size := sum(map(len, sets))) > MOST_SET_BYTES:
        raise Malformed(f"sets: must be of at most {MOST_SET_BYTES} bytes, got {size}")
    named = {digest for party in parties for digest in party.earlier}
    if {digest_of_set(found) for found in sets} != named:
        raise Malformed("sets: must be those of all earlier sums that the parties name")
    for found in sets:
        check_set(found)
    return sets


def shares_content(plan: Plan, sets: Sequence[bytes]) -> RecordDict:
    """Ask for sealed shares, and tell of which sets of parties there were sums before."""
    content = plan_content(plan)
    content["sets"] = ConfigRecord({"sets": list(sets)})
    return content


def plan_content(plan: Plan, turn: int = 0) -> RecordDict:
    """Make the beginning of every message from the second on."""
    named = Round(plan.nonce, plan.rounds, plan.num_classes, turn)
    return RecordDict({"round": ConfigRecord(to_values(named)), "table": ConfigRecord({"entries": plan.table})})


# A worker reads the same plan again for every client.
_plan_of = functools.lru_cache(maxsize=2)(Plan.from_table)


def _read_plan(content: RecordDict) -> tuple[Plan, int]:
    named = from_record(Round, content, "round", ConfigRecord)
    table = list_of(record_of(content, "table", ConfigRecord, {"entries"}), "entries", bytes, MOST_PARTIES)
    if named.turn >= named.rounds:
        raise Malformed(f"turn: must be below {named.rounds}, got {named.turn}")
    return _plan_of(named.nonce, named.rounds, named.num_classes, tuple(table)), named.turn


@reads_requests("for shares of keys")
def read_shares_request(msg: Message) -> tuple[Plan, list[bytes]]:
    """Read ``query.secure_shares``."""
    check_keys("request", msg.content, {"round", "table", "sets"}, {"clients"})
    plan, _ = _read_plan(msg.content)
    return plan, _sets(msg.content, plan.parties)


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


def sums_content(plan: Plan, turn: int, active: Sequence[int], mean: Tensor | None = None) -> RecordDict:
    """Ask for masked words, by ``query.secure_sums`` or ``query.secure_noisy``.

    Parameters
    ----------
    plan, turn, active
        The run of masks, the round, and its parties.
    mean : Tensor or None
        (d,) float64, for the second sum with noise.
    """
    content = plan_content(plan, turn)
    content["active"] = ConfigRecord({"parties": list(active)})
    content.update(_known(mean))
    return content


def clear_content(question: str, mean: Tensor | None) -> RecordDict:
    """Ask for words without masks, by ``query.noisy_sums``: a question with noise, and ``mean`` of the first sum."""
    return RecordDict({"question": ConfigRecord({"question": question}), **_known(mean)})


def _known(mean: Tensor | None) -> RecordDict:
    if mean is None:
        return RecordDict()
    from fedstats_app.wire.arrays import to_record

    return RecordDict({"known": to_record({"mean": mean})})


@reads_requests("for masked sums")
def read_sums_request(msg: Message) -> tuple[Plan, int, list[int]]:
    """Read ``query.secure_sums``."""
    check_keys("request", msg.content, {"round", "table", "active"}, {"clients"})
    return _read_round(msg.content)


@reads_requests("for masked scores")
def read_scores_request(msg: Message) -> tuple[Plan, int, list[int]]:
    """Read ``query.secure_scores``, but for the heads (:func:`fedstats_app.wire.evaluation.read_heads`)."""
    of_heads = {name for name in msg.content if name.startswith("head.")}
    check_keys("request", msg.content, {"round", "table", "active", *of_heads}, {"clients", "leave-one-out"})
    return _read_round(msg.content)


@reads_requests("for masked sums with noise")
def read_noisy_request(msg: Message) -> tuple[Plan, int, list[int], Tensor | None]:
    """Read ``query.secure_noisy``."""
    check_keys("request", msg.content, {"round", "table", "active"}, {"clients", "known"})
    return *_read_round(msg.content), _read_mean(msg.content)


@reads_requests("for sums with noise")
def read_clear_request(msg: Message) -> tuple[str, Tensor | None]:
    """Read ``query.noisy_sums``."""
    check_keys("request", msg.content, {"question"}, {"clients", "known"})
    return _text(msg.content), _read_mean(msg.content)


def _read_round(content: RecordDict) -> tuple[Plan, int, list[int]]:
    plan, turn = _read_plan(content)
    return plan, turn, _parties(content, "active", plan)


def _read_mean(content: RecordDict) -> Tensor | None:
    import torch

    from fedstats_app.wire.arrays import MAX_FEATURE_DIM, read_array

    if "known" not in content:
        return None
    known = record_of(content, "known", ArrayRecord, {"mean"})
    return read_array(known, "mean", torch.float64, (range(1, MAX_FEATURE_DIM + 1),))


def sums_reply(msg: Message, words: Words, shapes: Shapes) -> Message:
    """Answer ``query.secure_sums``, or another question for words."""
    from fedstats_app.statistics.secure_words import packed
    from fedstats_app.wire.arrays import to_record

    arrays = {str(place): array for place, array in enumerate(packed(words, shapes))}
    return Message(RecordDict({"words": to_record(arrays)}), reply_to=msg)


def words_reader(shapes: Shapes) -> Callable[[Message], Words]:
    """Return a reader of words, by their number and bytes."""
    import torch

    from fedstats_app.statistics.secure_words import unpacked
    from fedstats_app.wire.arrays import read_array

    @reads_replies
    def read(reply: Message) -> Words:
        check_keys("reply", reply.content, {"words"})
        record = record_of(reply.content, "words", ArrayRecord, {str(place) for place in range(len(shapes))})
        return unpacked([read_array(record, str(place), torch.uint8, shape) for place, shape in enumerate(shapes)])

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
