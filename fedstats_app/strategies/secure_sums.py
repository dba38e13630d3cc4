"""Secure sums: the server's side of the protocol, and the strategy whose statistics come out of it."""

from __future__ import annotations

import logging
import math
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedstats_app.grid.asking import first_reasons, num_bytes, to_all, usable
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.collection import ClientOutcome
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads.scatter import ClassTotals, SummedRows
from fedstats_app.secure.masks import KEY_BYTES
from fedstats_app.secure.overlaps import MIN_HOLDERS
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


class NothingUnmasked(TooFewClients):
    """So many clients were lost that a sum was given up: the masks of all stay on it."""


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


@dataclass
class MaskedRun(ABC, Generic[LayoutType]):
    """One run of masks, whatever is summed.

    Attributes
    ----------
    grid : Grid
        Whose nodes are the clients.
    request : StatisticsRequest
        Of one specification, whose features are rounded.
    layout : Layout
        In which words they travel.
    failures : dict
        From every client that was lost to the reason.
    bytes_up : Counter
        By client, and by kind of sum.
    """

    grid: Grid
    request: StatisticsRequest
    layout: LayoutType
    failures: dict[int, str] = field(init=False, default_factory=dict)
    bytes_up: Counter[int | str] = field(init=False, default_factory=Counter)

    @abstractmethod
    def question(self, kind: Any, turn: int, lost: int, known: dict[str, Tensor]) -> tuple[RecordDict, str]:
        """Return what clients are asked for the words of a sum, and the message's type.

        Parameters
        ----------
        kind : str
            Which sum.
        turn : int
            The round of masks.
        lost : int
            Clients lost since it is known who has which class.
        known : dict
            What clients need for it.
        """

    def begin(self, clients: Sequence[int]) -> None:
        """Ask for keys, and for shares of them: who answers both is a party that can be lost later.

        Raises
        ------
        NothingUnmasked
            If too few do.
        """
        nonce, rounds = secrets.token_bytes(KEY_BYTES), len(self.layout.kinds) + SPARE_ROUNDS
        with self._doing("exchanging keys"):
            said = self._ask(keys_content(Round(nonce, rounds)), SECURE_KEYS, clients, keys_reader(rounds))
        parties = self._different({client: keys for client, (keys, _) in said.items()})
        if len(parties) < 3:
            raise NothingUnmasked(f"secure sums take at least 3 clients, got {len(parties)}; {self.reasons()}")
        self.clients = list(parties)
        self.place = {client: place for place, client in enumerate(self.clients)}
        self.plan = Plan(nonce, rounds, tuple(parties.values()))
        content = shares_content(self.plan, sorted({one for client in self.clients for one in said[client][1]}))
        with self._doing("exchanging shares of keys"):
            sealed = self._ask(content, SECURE_SHARES, self.clients, shares_reader(self.plan))
        self.sealed = {self.place[client]: of_client for client, of_client in sealed.items()}
        self.active = sorted(self.sealed)
        self.present, self.turn = 0, 0
        self._check_number(self.active)

    def _doing(self, what: str) -> AbstractContextManager[object]:
        return self.grid.progress.doing(what) if isinstance(self.grid, ClientGrid) else nullcontext()

    def _different(self, keys: dict[int, PublicKeys]) -> dict[int, PublicKeys]:
        """Leave out who has a key or an identity of a client before it."""
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
        self, kind: Any, holders: Tensor | None, known: dict[str, Tensor], *, over: Sequence[int] = ()
    ) -> tuple[Words, Tensor]:
        """Return the words of a sum, and the (C,) bool classes in it; it begins anew where it lost too many clients.

        Raises
        ------
        NothingUnmasked
            If too few are left, no round of masks is, or the sum must be over some parties and they are not all left.
        """
        lost = self.present - len(self.active) if holders is not None else 0
        while self.turn < self.plan.rounds:
            turn, self.turn = self.turn, self.turn + 1
            classes = torch.ones(self.layout.num_classes, dtype=torch.bool)
            allowed = classes if holders is None else holders - lost >= MIN_HOLDERS
            said = f"secure sum {self.layout.kinds.index(kind) + 1} of {len(self.layout.kinds)}, {IN_WORDS[kind]}"
            with self._doing(said):
                total = self._masked(kind, turn, lost, allowed, known)
            left = sorted(total.survivors)
            self._check_number(left)
            if over and left != over:
                raise NothingUnmasked(f"clients were lost between two sums that must be of the same; {self.reasons()}")
            found = self.present - len(left)
            if holders is not None and bool((holders[allowed] - found < MIN_HOLDERS).any()):
                logger.warning("%s begins anew: %d clients were lost, and some classes are of few", kind, found)
                self.active, lost = left, found
                continue
            with self._doing(f"{said}, taking the masks off"):
                words = self._unmasked(total, turn, left)
            self.summed_over = left
            if kind == "presence":
                self.present = len(left)
            return words, allowed
        raise NothingUnmasked(f"too many clients were lost in turn; {self.reasons()}")

    def _masked(self, kind: Any, turn: int, lost: int, allowed: Tensor, known: dict[str, Tensor]) -> MaskedSum:
        shapes = self.layout.words(kind, int(allowed.sum()))
        content, message_type = self.question(kind, turn, lost, known)
        total, read = MaskedSum(shapes, asked_digest(content)), words_reader(shapes)
        asked_clients = {self.clients[party] for party in self.active}
        replies = self.grid.send_and_receive(to_all(content, message_type, asked_clients))
        for client, reply, words in usable(replies, read, self.failures, asked_clients):
            total.add(self.place[client], words)
            self._count(client, kind, reply)
        return total

    def _unmasked(self, total: MaskedSum, turn: int, left: list[int]) -> Words:
        signatures, asked = b"", left
        if self.plan.is_signed:
            signed = {party: one for party, (_, one) in self._unmask_replies(turn, left, left, b"").items()}
            signatures = b"".join(signed.get(party) or bytes(SIGNATURE_BYTES) for party in left)
            asked = sorted(signed)
        answers: dict[int, dict[int, bytes]] = {}
        for party, (shares, _) in self._unmask_replies(turn, left, asked, signatures).items():
            others = self.plan.neighbours_among(party, self.active)
            if len(shares) != len(others):
                self.failures[self.clients[party]] = f"it must give {len(others)} shares, got {len(shares)}"
                continue
            answers[party] = dict(zip(others, shares, strict=True))
        try:
            words = total.unmask(self.plan, turn, self.active, answers)
        except ValueError as error:
            raise NothingUnmasked(f"a sum stays masked: {error}; {self.reasons()}") from error
        self.active = sorted(answers)
        return words

    def _unmask_replies(
        self, turn: int, left: list[int], parties: list[int], signatures: bytes
    ) -> dict[int, tuple[list[bytes], bytes]]:
        messages = []
        for party in parties:
            content = unmask_content(self.plan, turn, self.active, left, self._sealed_for(party, turn), signatures)
            messages.append(Message(content, dst_node_id=self.clients[party], message_type=SECURE_UNMASK))
        found, asked = {}, {self.clients[party] for party in parties}
        replies = self.grid.send_and_receive(messages)
        for client, reply, answer in usable(replies, read_unmask_reply, self.failures, asked):
            found[self.place[client]] = answer
            self._count(client, "keys", reply)
        return found

    def _sealed_for(self, party: int, turn: int) -> bytes:
        """Return what the neighbours of a party sealed for it, ascending."""
        parts = []
        for other in self.plan.neighbours_among(party, self.active):
            place = self.plan.neighbours(other).index(party)
            parts.append(self.sealed[other][turn][place * SEALED_BYTES : (place + 1) * SEALED_BYTES])
        return b"".join(parts)

    def _ask(
        self, content: RecordDict, message_type: str, clients: Iterable[int], read: Callable[[Message], Any]
    ) -> dict[int, Any]:
        asked, answers = set(clients), {}
        replies = self.grid.send_and_receive(to_all(content, message_type, asked))
        for client, reply, answer in usable(replies, read, self.failures, asked):
            answers[client] = answer
            self._count(client, "keys", reply)
        return dict(sorted(answers.items()))

    def _count(self, client: int, kind: str, reply: Message) -> None:
        size = num_bytes(reply.content) + sum(
            len(value)
            for record in reply.content.config_records.values()
            for value in record.values()
            if isinstance(value, bytes)
        )
        self.bytes_up[client] += size
        self.bytes_up[kind] += size

    def _check_number(self, parties: Sequence[int]) -> None:
        if len(parties) < self.plan.least_left:
            raise NothingUnmasked(
                f"{len(parties)} of {len(self.clients)} clients are left, secure sums need {self.plan.least_left} of "
                f"them: nothing more was unmasked; {self.reasons()}"
            )

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

    def question(self, kind: Kind, turn: int, lost: int, known: dict[str, Tensor]) -> tuple[RecordDict, str]:
        """Return what :meth:`MaskedRun.question` says, for ``query.secure_sums``."""
        asked = SumRequest(kind, self.layout.gram, self.layout.narrow, self.most_samples, self.norm, lost)
        return sums_content(self.plan, turn, self.active, self.request, asked, known), SECURE_SUMS


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
        If a method needs statistics that do not add up, or methods need features of different kinds.
    """

    def __init__(
        self, num_classes: int, methods: Sequence[Any], *, exact_samples: int, gram: Gram = "triangle", **options: Any
    ) -> None:
        for method in methods:
            if reason := method.cannot_add:
                raise ValueError(f"secure-sums: {reason}")
        self._spreads = any(method.keeps_rows for method in methods)
        super().__init__(num_classes, methods, exact_samples=exact_samples, **options)
        if len(self.request.specs) != 1:
            raise ValueError("secure-sums: all methods must need the same features, got several feature maps")
        if self.feature_dim is None:
            raise ValueError("secure-sums: need the feature dimension, got None")
        self._samples = exact_samples
        self._gram = gram
        self._by_kind: Counter[int | str] = Counter()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Sum, solve, and return Flower's Result; arguments as Flower's, of which none but ``grid`` is used.

        Raises
        ------
        TooFewClients
            If so many clients were lost that nothing was unmasked.
        """
        clients = sorted(grid.get_node_ids())
        self._asked = set(clients)
        self._sum(grid, clients)
        arrays, metrics = self.aggregate_train(1, ())
        result = Result()
        result.arrays, result.train_metrics_clientapp = arrays or ArrayRecord(), {1: metrics or MetricRecord()}
        return result

    def _sum(self, grid: Grid, clients: Sequence[int]) -> None:
        """Take a sum over clients into the collection."""
        run = self._prepared(grid, len(clients))
        run.begin(clients)
        words, _ = run.summed("presence", None, {})
        holders = torch.from_numpy(words[0].astype("int64"))
        if not bool(((holders >= 0) & (holders <= run.present)).all()):
            raise ValueError("a sum is out of its range: a class has more clients than there are")
        if few := int((holders < MIN_HOLDERS).sum()):
            left_out = f"secure sums leave out classes that fewer than {MIN_HOLDERS} clients have"
            if few == len(holders):
                raise NothingUnmasked(f"{left_out}, and no class is at more: let sites with the same classes take part")
            logger.warning("%s: %d of %d classes", left_out, few, len(holders))
        words, allowed = run.summed("sums", holders, {"holders": holders})
        merged = [run.clients[party] for party in run.summed_over]
        total = run.layout.read_sums(words, allowed)
        check_sum(total, self._samples, run.norm)
        if run.layout.gram == "triangle":
            total = self._with_scatter(run, total, holders)
        elif run.layout.products:
            total = self._with_products(run, total, holders)
        if self._spreads:
            self._summed_rows = _summed_rows(run, total, holders, allowed, len(merged))
        self._take(run, total, merged, int(holders[allowed].sum()))

    def _prepared(self, grid: Grid, parties: int) -> SecureRun:
        (spec,), dim = self.request.specs, self.feature_dim or 0
        norm = self._limits.mapped_norm(spec, dim)
        gram, mapped = self._gram if spec.gram else "none", spec.feature_map.output_dim(dim)
        layout = SecureLayout.of(self.num_classes, mapped, gram, parties, self._samples, norm)
        layout = replace(layout, spread=self._spreads)
        request = replace(self.request, specs=(replace(spec, fraction_bits=layout.bits),))
        most = min(self._limits.max_samples, self._samples)
        return SecureRun(grid, request, layout, most, norm)

    def _with_scatter(self, run: SecureRun, total: FeatureStatistics, holders: Tensor) -> FeatureStatistics:
        known = Known.of(total)
        means, scales = known.means.to(torch.float32), known.scales.to(torch.float32)
        words, _ = run.summed("scatter", holders, {"holders": holders, "means": means, "scales": scales})
        return run.layout.read_scatter(words, total, known)

    def _with_products(self, run: SecureRun, total: FeatureStatistics, holders: Tensor) -> FeatureStatistics:
        """Approximate the Gram matrix; if clients are lost between two products, from those before."""
        known = Known.of(total)
        means, scales = known.means.to(torch.float32), known.scales.to(torch.float32)
        over = list[int]()

        def product_with(kind: Product, asked: Tensor) -> Tensor | None:
            content = {"holders": holders, "means": means, "scales": scales, "directions": asked.to(torch.float32)}
            try:
                words, _ = run.summed(kind, holders, content, over=over)
            except NothingUnmasked as error:
                if not over:
                    raise
                logger.warning("the Gram matrix is approximated from %d products: %s", int(kind[-1]) - 1, error)
                return None
            over[:] = run.summed_over
            return run.layout.read_product(words, known, asked)

        return approximated_by(total, known, run.layout.products, product_with)

    def _take(self, run: MaskedRun[Any], total: FeatureStatistics, merged: list[int], pairs: int) -> None:
        summed = StatisticsSum.resumed(total, None, num_rows=pairs, num_pairs=pairs)
        self.collection.take_sum(summed, merged, sum(run.bytes_up[client] for client in run.clients))
        self._by_kind = run.bytes_up
        for client in sorted(self._asked):
            outcome = _outcome(client, run.failures.get(client, ""), run.bytes_up[client], merged=client in merged)
            self.outcomes.append(outcome)
            if self.on_reply is not None:
                self.on_reply(outcome, None)

    def wire_bytes(self, method: str) -> int:
        """Return the bytes, of all that was received, that a method needed."""
        one = self.methods()[method]
        scatter = 0 if one.method.needs.gram else sum(self._by_kind[kind] for kind in ("scatter", *PRODUCTS))
        return self.collection.total_wire_bytes - scatter - (0 if one.keeps_rows else self._by_kind["spread"])


def _summed_rows(run: SecureRun, total: FeatureStatistics, holders: Tensor, allowed: Tensor, summed: int) -> SummedRows:
    """Sum the spread of clients' means about the class means, which FedCOF takes in place of rows.

    Clients that are lost before class sums are known take their share of the holders with them, those lost after it
    leave their share of the spread to the others: which classes they had is not known.
    """
    counts, known = total.class_counts.to(torch.float64), total.class_means.to(torch.float32)
    num_means = torch.where(allowed, holders * (summed / run.present), 0.0)
    totals = ClassTotals(counts, num_means, total.class_sums, total.class_means)
    weights, means = totals.fedcof_weights, known.to(torch.float64)
    # No client's mean is further from a class's than this.
    apart = run.norm + torch.linalg.vector_norm(means, dim=1)
    steps = 2.0 ** math.floor(61 - math.log2(max(float((weights * counts * apart**2).sum()), 1.0)))
    content = {"holders": holders, "means": known, "weights": weights * steps}
    words, left = run.summed("spread", holders, content)
    totals = totals._replace(num_means=num_means * left)
    return SummedRows(totals, run.layout.read_spread(words, steps) * (summed / len(run.summed_over)))


def _outcome(client: int, said: str, sent: int, *, merged: bool) -> ClientOutcome:
    if merged:
        warning = f"lost after its class sums were summed: {said}" if said else ""
        return ClientOutcome(client, 1, "merged", wire_bytes=sent, warning=warning)
    kind = "refused" if said.startswith(("RefusedByPolicy: ", "RejectedRequest: ")) else "failed"
    return ClientOutcome(client, 1, kind, said or "it was lost before its class sums were summed")
