"""Secure sums: the server's side of the protocol, and the strategy whose statistics come out of it."""

from __future__ import annotations

import logging
import math
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedstats_app.grid.asking import first_reasons, num_bytes, to_all, usable
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.collection import ClientOutcome
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads.scatter import ClassTotals, SummedRows
from fedstats_app.methods import Need, cannot_add
from fedstats_app.secure.graph import MIN_HOLDERS
from fedstats_app.secure.masks import KEY_BYTES
from fedstats_app.secure.party import SEALED_BYTES
from fedstats_app.secure.plan import SIGNATURE_BYTES, Plan, PublicKeys
from fedstats_app.secure.unmasking import MaskedSum
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.collected import StatisticsSum
from fedstats_app.statistics.noisy_words import NoisyKind
from fedstats_app.statistics.secure_words import (
    PRODUCTS,
    Gram,
    Kind,
    Known,
    Product,
    SecureLayout,
    Unsigned,
    Words,
    approximated_by,
    check_sum,
)
from fedstats_app.strategies.base import StatisticsStrategy
from fedstats_app.wire import StatisticsRequest
from fedstats_app.wire.secure import (
    SECURE_KEYS,
    SECURE_SHARES,
    SECURE_SUMS,
    SECURE_UNMASK,
    Round,
    SumRequest,
    asked_digest,
    keys_content,
    keys_reader,
    read_unmask_reply,
    shares_content,
    shares_reader,
    sums_content,
    unmask_content,
    words_reader,
)

logger = logging.getLogger("fedstats_app")

# What is said while a sum is formed.
IN_WORDS: dict[Kind | NoisyKind, str] = {
    "presence": "how many clients have each class",
    "sums": "class sums",
    "scatter": "scatter about the class means",
    "spread": "spread of clients' means",
    **dict.fromkeys(PRODUCTS, "scatter in the directions of the class means, or of the product before"),
    "mean": "mean of all samples, with noise",
    "moments": "class sums and second moments, with noise",
}
# For sums that lost so many clients that a class might be of too few, and begin anew without it.
SPARE_ROUNDS = 2


class Layout(Protocol):
    """In which words sums travel."""

    @property
    def num_classes(self) -> int:
        """C."""

    @property
    def kinds(self) -> Sequence[str]:
        """The sums, in their order."""

    def words(self, kind: Any, allowed: int) -> list[tuple[int, Unsigned]]:
        """List length and type of each array of a sum over so many classes."""


LayoutType = TypeVar("LayoutType", bound=Layout)


@dataclass(frozen=True)
class Parties:
    """The clients of a sum.

    Attributes
    ----------
    clients : tuple of int
        By party.
    active : tuple of int
        The parties that are not lost, ascending.
    """

    clients: tuple[int, ...]
    active: tuple[int, ...]


@dataclass(frozen=True)
class Agreed(Parties):
    """State of a run of masks: what its parties have agreed on, and how far they are.

    Attributes
    ----------
    plan : Plan
        Their public keys.
    sealed : mapping
        From party to the sealed shares of its keys, by round of masks.
    turn : int
        Rounds of masks that are used.
    num_counted : int
        Parties whose classes were counted; 0 before.
    """

    plan: Plan
    sealed: Mapping[int, Sequence[bytes]]
    turn: int = 0
    num_counted: int = 0

    @property
    def num_lost(self) -> int:
        """Parties lost since their classes were counted."""
        return max(self.num_counted - len(self.active), 0)

    def sealed_for(self, party: int) -> bytes:
        """Return what the neighbours of a party sealed for it in this round, ascending."""
        parts = []
        for other in self.plan.neighbours_among(party, self.active):
            place = self.plan.neighbours(other).index(party)
            parts.append(self.sealed[other][self.turn][place * SEALED_BYTES : (place + 1) * SEALED_BYTES])
        return b"".join(parts)


PartiesType = TypeVar("PartiesType", bound=Parties)


@dataclass(frozen=True)
class Summed(Generic[PartiesType]):
    """A sum.

    Attributes
    ----------
    words : Words
        Of the sum.
    classes : Tensor
        (C,) bool, those that are in it.
    over : tuple of int
        The parties that are in it, ascending.
    parties : Parties
        The state after it.
    """

    words: Words
    classes: Tensor
    over: tuple[int, ...]
    parties: PartiesType


class NothingUnmasked(TooFewClients):
    """So many clients were lost that a sum was given up: the masks of all stay on it.

    Attributes
    ----------
    agreed : Agreed or None
        The state after it.
    """

    agreed: Agreed | None = None


@dataclass
class SummingRun(Generic[LayoutType]):
    """Sums over clients, and an account of it.

    Attributes
    ----------
    grid : Grid
        Whose nodes are the clients.
    request : StatisticsRequest
        For features that are rounded.
    layout : Layout
        In which words they travel.
    failures : dict
        From every client that was lost to the reason.
    bytes_by_client, bytes_by_kind : Counter
        Received, by client and by kind of sum; "keys" is everything else.
    """

    grid: Grid
    request: StatisticsRequest
    layout: LayoutType
    failures: dict[int, str] = field(init=False, default_factory=dict)
    bytes_by_client: Counter[int] = field(init=False, default_factory=Counter)
    bytes_by_kind: Counter[str] = field(init=False, default_factory=Counter)

    def doing(self, step: str) -> AbstractContextManager[object]:
        """Show progress of a step."""
        return self.grid.progress.doing(step) if isinstance(self.grid, ClientGrid) else nullcontext()

    def add_up(self, parties: Parties, kind: str, content: RecordDict, message_type: str, classes: Tensor) -> MaskedSum:
        """Ask the active parties for their words of a sum, and add them up as they come."""
        shapes = self.layout.words(kind, int(classes.sum()))
        total, read = MaskedSum(shapes, asked_digest(content)), words_reader(shapes)
        party_of = {parties.clients[party]: party for party in parties.active}
        replies = self.grid.send_and_receive(to_all(content, message_type, party_of.keys()))
        for client, reply, words in usable(replies, read, self.failures, set(party_of)):
            total.add(party_of[client], words)
            self.count(client, kind, reply)
        return total

    def count(self, client: int, kind: str, reply: Message) -> None:
        """Count the bytes of a reply."""
        size = num_bytes(reply.content) + sum(
            len(value)
            for record in reply.content.config_records.values()
            for value in record.values()
            if isinstance(value, bytes)
        )
        self.bytes_by_client[client] += size
        self.bytes_by_kind[kind] += size

    def reasons(self) -> str:
        """Return the first failures in words, each reason once."""
        clients: dict[str, list[int]] = {}
        for client, reason in self.failures.items():
            clients.setdefault(reason, []).append(client)
        return first_reasons(
            [
                f"client {same[0]}: {reason}" if len(same) == 1 else f"{len(same)} clients: {reason}"
                for reason, same in clients.items()
            ]
        )


@dataclass
class MaskedRun(SummingRun[LayoutType], ABC):
    """One run of masks, for exact sums or sums with noise. Its state is passed on and returned."""

    @abstractmethod
    def question(self, agreed: Agreed, kind: Any, known: dict[str, Tensor]) -> tuple[RecordDict, str]:
        """Return the request for the words of a sum, and the message's type.

        Parameters
        ----------
        agreed : Agreed
            The state before it.
        kind : str
            Which sum.
        known : dict
            What clients need for it.
        """

    def begin(self, clients: Sequence[int]) -> Agreed:
        """Ask for keys, and for shares of them: clients that answer both are parties that can be lost later.

        Raises
        ------
        NothingUnmasked
            If too few do.
        """
        nonce, rounds = secrets.token_bytes(KEY_BYTES), len(self.layout.kinds) + SPARE_ROUNDS
        with self.doing("exchanging keys"):
            answers = self._ask(keys_content(Round(nonce, rounds)), SECURE_KEYS, clients, keys_reader(rounds))
        keys = self.different({client: keys for client, (keys, _) in answers.items()})
        if len(keys) < 3:
            raise NothingUnmasked(f"secure sums take at least 3 clients, got {len(keys)}; {self.reasons()}")
        plan = Plan(nonce, rounds, tuple(keys.values()))
        content = shares_content(plan, sorted({share for client in keys for share in answers[client][1]}))
        with self.doing("exchanging shares of keys"):
            shares = self._ask(content, SECURE_SHARES, keys, shares_reader(plan))
        sealed = {party: shares[client] for party, client in enumerate(keys) if client in shares}
        agreed = Agreed(tuple(keys), tuple(sealed), plan, sealed)
        self._check_number(agreed, agreed.active)
        return agreed

    def different(self, keys: Mapping[int, PublicKeys]) -> dict[int, PublicKeys]:
        """Leave out clients that have a key or an identity of a client before them."""
        seen: set[bytes] = set()
        kept = {}
        for client, own in keys.items():
            values = {own.identity, own.channel, *own.masks}
            if values & seen or len(values) < 2 + len(own.masks):
                self.failures[client] = "its keys are those of another client"
                continue
            seen |= values
            kept[client] = own
        return kept

    def summed(
        self,
        agreed: Agreed,
        kind: Any,
        holders: Tensor | None,
        known: dict[str, Tensor],
        *,
        over: tuple[int, ...] = (),
    ) -> Summed[Agreed]:
        """Return a sum; it begins anew if it lost so many clients that a class may be left with too few.

        Raises
        ------
        NothingUnmasked
            If too few are left, no round of masks is, or the sum must be over some parties and they are not all left.
        """
        step = f"secure sum {self.layout.kinds.index(kind) + 1} of {len(self.layout.kinds)}, {IN_WORDS[kind]}"
        everyone = torch.ones(self.layout.num_classes, dtype=torch.bool)
        while agreed.turn < agreed.plan.rounds:
            used = replace(agreed, turn=agreed.turn + 1)
            classes = everyone if holders is None else holders - agreed.num_lost >= MIN_HOLDERS
            try:
                with self.doing(step):
                    total = self.add_up(agreed, kind, *self.question(agreed, kind, known), classes)
                left = tuple(sorted(total.survivors))
                self._check_number(agreed, left)
                if over and left != over:
                    raise NothingUnmasked(
                        f"clients were lost between two sums that must be of the same; {self.reasons()}"
                    )
                lost = agreed.num_counted - len(left)
                if holders is not None and bool((holders[classes] - lost < MIN_HOLDERS).any()):
                    logger.warning("%s begins anew: %d clients were lost, and some classes are of few", kind, lost)
                    agreed = replace(used, active=left)
                    continue
                with self.doing(f"{step}, taking the masks off"):
                    words, active = self.unmasked(agreed, total, left)
            except NothingUnmasked as error:
                error.agreed = used
                raise
            counted = len(left) if kind == "presence" else agreed.num_counted
            return Summed(words, classes, left, replace(used, active=active, num_counted=counted))
        raise NothingUnmasked(f"too many clients were lost in turn; {self.reasons()}")

    def unmasked(self, agreed: Agreed, total: MaskedSum, left: tuple[int, ...]) -> tuple[Words, tuple[int, ...]]:
        """Take the masks off a sum over the parties that are left; return its words and the parties that helped."""
        signatures, parties = b"", left
        if agreed.plan.is_signed:
            signed = {
                party: signature for party, (_, signature) in self._unmask_replies(agreed, left, left, b"").items()
            }
            signatures = b"".join(signed.get(party) or bytes(SIGNATURE_BYTES) for party in left)
            parties = tuple(sorted(signed))
        answers: dict[int, dict[int, bytes]] = {}
        for party, (shares, _) in self._unmask_replies(agreed, left, parties, signatures).items():
            others = agreed.plan.neighbours_among(party, agreed.active)
            if len(shares) != len(others):
                self.failures[agreed.clients[party]] = f"it must give {len(others)} shares, got {len(shares)}"
                continue
            answers[party] = dict(zip(others, shares, strict=True))
        try:
            words = total.unmask(agreed.plan, agreed.turn, agreed.active, answers)
        except ValueError as error:
            raise NothingUnmasked(f"a sum stays masked: {error}; {self.reasons()}") from error
        return words, tuple(sorted(answers))

    def _unmask_replies(
        self, agreed: Agreed, left: Sequence[int], parties: Sequence[int], signatures: bytes
    ) -> dict[int, tuple[list[bytes], bytes]]:
        party_of, messages = {agreed.clients[party]: party for party in parties}, []
        for client, party in party_of.items():
            sealed = agreed.sealed_for(party)
            content = unmask_content(agreed.plan, agreed.turn, agreed.active, left, sealed, signatures)
            messages.append(Message(content, dst_node_id=client, message_type=SECURE_UNMASK))
        found, replies = {}, self.grid.send_and_receive(messages)
        for client, reply, answer in usable(replies, read_unmask_reply, self.failures, set(party_of)):
            found[party_of[client]] = answer
            self.count(client, "keys", reply)
        return found

    def _ask(
        self, content: RecordDict, message_type: str, clients: Iterable[int], read: Callable[[Message], Any]
    ) -> dict[int, Any]:
        expected, answers = set(clients), {}
        replies = self.grid.send_and_receive(to_all(content, message_type, expected))
        for client, reply, answer in usable(replies, read, self.failures, expected):
            answers[client] = answer
            self.count(client, "keys", reply)
        return dict(sorted(answers.items()))

    def _check_number(self, agreed: Agreed, parties: Sequence[int]) -> None:
        if len(parties) < agreed.plan.least_left:
            raise NothingUnmasked(
                f"{len(parties)} of {len(agreed.clients)} clients are left, secure sums need {agreed.plan.least_left} "
                f"of them: nothing more was unmasked; {self.reasons()}"
            )


@dataclass
class SecureRun(MaskedRun[SecureLayout]):
    """One run of masks for exact sums.

    Attributes
    ----------
    most_samples : int
        Of one client.
    norm : float
        Of the longest feature.
    """

    most_samples: int
    norm: float

    def question(self, agreed: Agreed, kind: Kind, known: dict[str, Tensor]) -> tuple[RecordDict, str]:
        """Return the request of :meth:`MaskedRun.question` as ``query.secure_sums``."""
        layout, lost = self.layout, agreed.num_lost
        sum_request = SumRequest(kind, layout.gram, layout.narrow, self.most_samples, self.norm, lost)
        return sums_content(agreed.plan, agreed.turn, agreed.active, self.request, sum_request, known), SECURE_SUMS


class SecureStatisticsStrategy(StatisticsStrategy):
    """Serves methods whose statistics add up from secure sums: the server sees no client's part.

    Parameters
    ----------
    exact_samples : int
        As many samples as all clients can have together.
    gram : str
        What is summed of Gram matrices, as :class:`fedstats_app.statistics.secure_words.SecureLayout` has it.
    num_classes, methods, options
        Of :class:`StatisticsStrategy`.

    Raises
    ------
    ValueError
        If a method needs statistics that do not add up.
    """

    def __init__(
        self, num_classes: int, methods: Sequence[Any], *, exact_samples: int, gram: Gram = "triangle", **options: Any
    ) -> None:
        for method in methods:
            if reason := cannot_add(method):
                raise ValueError(f"secure-sums: {reason}")
        self._spreads = any(method.keeps_rows for method in methods)
        super().__init__(num_classes, methods, exact_samples=exact_samples, **options)
        if self.feature_dim is None:
            raise ValueError("secure-sums: need the feature dimension, got None")
        self._samples = exact_samples
        self._gram = gram
        self._by_kind: Counter[str] = Counter()

    def collect(
        self,
        grid: Grid,
        num_rounds: int | None = None,
        timeout: float | None = None,
        after_round: Callable[[int], None] = lambda server_round: None,
    ) -> None:
        """Sum over all clients in one round; arguments as of :meth:`StatisticsStrategy.collect`.

        Raises
        ------
        TooFewClients
            If so many clients were lost that nothing was unmasked.
        """
        clients = sorted(grid.get_node_ids())
        self._asked = set(clients)
        self._sum(grid, clients)
        after_round(1)

    def _sum(self, grid: Grid, clients: Sequence[int]) -> None:
        """Take a sum over clients into the collection."""
        run = self._prepared(grid, len(clients))
        presence = run.summed(run.begin(clients), "presence", None, {})
        agreed, holders = presence.parties, torch.from_numpy(presence.words[0].astype("int64"))
        if not bool(((holders >= 0) & (holders <= agreed.num_counted)).all()):
            raise ValueError("a sum is out of its range: a class has more clients than there are")
        if few := int((holders < MIN_HOLDERS).sum()):
            left_out = f"secure sums leave out classes that fewer than {MIN_HOLDERS} clients have"
            if few == len(holders):
                raise NothingUnmasked(f"{left_out}, and no class is at more: let sites with the same classes take part")
            logger.warning("%s: %d of %d classes", left_out, few, len(holders))
        sums = run.summed(agreed, "sums", holders, {"holders": holders})
        agreed, total = sums.parties, run.layout.read_sums(sums.words, sums.classes)
        check_sum(total, self._samples, run.norm)
        if run.layout.gram == "triangle":
            total, agreed = _with_scatter(run, agreed, total, holders)
        elif run.layout.products:
            total, agreed = _with_products(run, agreed, total, holders)
        if self._spreads:
            self._summed_rows = _summed_rows(run, agreed, total, holders, sums)
        merged = [agreed.clients[party] for party in sums.over]
        self._take(run, agreed.clients, total, merged, int(holders[sums.classes].sum()))

    def _prepared(self, grid: Grid, parties: int) -> SecureRun:
        spec, dim, norm = self.request.spec, self.feature_dim or 0, self._limits.norm
        gram = self._gram if spec.gram else "none"
        layout = SecureLayout.of(self.num_classes, dim, gram, parties, self._samples, norm)
        layout = replace(layout, spread=self._spreads)
        request = replace(self.request, spec=replace(spec, fraction_bits=layout.bits))
        most = min(self._limits.max_samples, self._samples)
        return SecureRun(grid, request, layout, most, norm)

    def _take(
        self, run: SummingRun[Any], clients: Sequence[int], total: FeatureStatistics, merged: Sequence[int], pairs: int
    ) -> None:
        summed = StatisticsSum.resumed(total, None, num_rows=pairs, num_pairs=pairs)
        self.collection.take_sum(summed, merged, sum(run.bytes_by_client[client] for client in clients))
        self._by_kind = run.bytes_by_kind
        for client in sorted(self._asked):
            outcome = _outcome(
                client, run.failures.get(client, ""), run.bytes_by_client[client], merged=client in merged
            )
            self.outcomes.append(outcome)
            if self.on_reply is not None:
                self.on_reply(outcome, None)

    def wire_bytes(self, method: str) -> int:
        """Return the bytes, of all that was received, that a method needed."""
        configured = self.methods()[method]
        scatter = 0 if Need.GRAM in configured.needs else sum(self._by_kind[kind] for kind in ("scatter", *PRODUCTS))
        return self.collection.total_wire_bytes - scatter - (0 if configured.keeps_rows else self._by_kind["spread"])


def _with_scatter(
    run: SecureRun, agreed: Agreed, total: FeatureStatistics, holders: Tensor
) -> tuple[FeatureStatistics, Agreed]:
    """Sum the scatter about the class means, and add the Gram matrix."""
    known = Known.of(total)
    means, scales = known.means.to(torch.float32), known.scales.to(torch.float32)
    scatter = run.summed(agreed, "scatter", holders, {"holders": holders, "means": means, "scales": scales})
    return run.layout.read_scatter(scatter.words, total, known), scatter.parties


def _with_products(
    run: SecureRun, agreed: Agreed, total: FeatureStatistics, holders: Tensor
) -> tuple[FeatureStatistics, Agreed]:
    """Approximate the Gram matrix; if clients are lost between two products, from those before."""
    known = Known.of(total)
    means, scales = known.means.to(torch.float32), known.scales.to(torch.float32)
    over: tuple[int, ...] = ()

    def product_with(kind: Product, directions: Tensor) -> Tensor | None:
        nonlocal agreed, over
        content = {"holders": holders, "means": means, "scales": scales, "directions": directions.to(torch.float32)}
        try:
            product = run.summed(agreed, kind, holders, content, over=over)
        except NothingUnmasked as error:
            if not over or error.agreed is None:
                raise
            agreed = error.agreed
            logger.warning("the Gram matrix is approximated from %d products: %s", int(kind[-1]) - 1, error)
            return None
        agreed, over = product.parties, product.over
        return run.layout.read_product(product.words, known, directions)

    return approximated_by(total, known, run.layout.products, product_with), agreed


def _summed_rows(
    run: SecureRun, agreed: Agreed, total: FeatureStatistics, holders: Tensor, sums: Summed[Agreed]
) -> SummedRows:
    """Sum the spread of clients' means about the class means, which FedCOF takes in place of rows.

    Clients that are lost before class sums are known take their share of the holders with them, those lost after it
    leave their share of the spread to the others: which classes they had is not known.
    """
    counts, known = total.class_counts.to(torch.float64), total.class_means.to(torch.float32)
    num_means = torch.where(sums.classes, holders * (len(sums.over) / agreed.num_counted), 0.0)
    totals = ClassTotals(counts, num_means, total.class_sums, total.class_means)
    weights, means = totals.fedcof_weights, known.to(torch.float64)
    # No client's mean is further from a class's than this.
    apart = run.norm + torch.linalg.vector_norm(means, dim=1)
    steps = 2.0 ** math.floor(61 - math.log2(max(float((weights * counts * apart**2).sum()), 1.0)))
    spread = run.summed(agreed, "spread", holders, {"holders": holders, "means": known, "weights": weights * steps})
    totals = totals._replace(num_means=num_means * spread.classes)
    return SummedRows(totals, run.layout.read_spread(spread.words, steps) * (len(sums.over) / len(spread.over)))


def _outcome(client: int, reason: str, sent: int, *, merged: bool) -> ClientOutcome:
    if merged:
        warning = f"lost after its class sums were summed: {reason}" if reason else ""
        return ClientOutcome(client, 1, "merged", wire_bytes=sent, warning=warning)
    kind = "refused" if reason.startswith(("RefusedByPolicy: ", "RejectedRequest: ")) else "failed"
    return ClientOutcome(client, 1, kind, reason or "it was lost before its class sums were summed")
