"""Secure sums: the server's side of the protocol, and the strategy whose statistics come out of it."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.base.listing import first_few
from fedstats_app.data.targets import EVERY_SAMPLE
from fedstats_app.grid.asking import first_reasons, num_bytes, to_all, usable
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.collection import ClientOutcome
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads import LinearHead
from fedstats_app.heads.leave_one_out import LeaveOneOut
from fedstats_app.heads.scatter import ClassTotals, SummedRows
from fedstats_app.heads.summed_scores import SummedScores
from fedstats_app.heads.target_scores import TargetScores
from fedstats_app.heads.targets import TargetLeaveOneOut
from fedstats_app.methods import Need, cannot_add
from fedstats_app.secure.masks import KEY_BYTES, Words
from fedstats_app.secure.party import SEALED_BYTES, query_of
from fedstats_app.secure.plan import MOST_ROUNDS, SIGNATURE_BYTES, Entry, Plan
from fedstats_app.secure.unmasking import MaskedSum
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.collected import StatisticsSum
from fedstats_app.statistics.secure_words import WORD_BYTES, SecureLayout, Shapes, fedcof_scatter, mean_weights
from fedstats_app.strategies.base import StatisticsStrategy
from fedstats_app.wire.evaluation import heads_content, heads_digest
from fedstats_app.wire.secure import (
    HELD_OUT,
    SCORES,
    SECURE_KEYS,
    SECURE_NOISY,
    SECURE_SCORES,
    SECURE_SHARES,
    SECURE_SUMS,
    SECURE_UNMASK,
    Round,
    SumRequest,
    class_names_in,
    keys_content,
    keys_reader,
    question_text,
    read_unmask_reply,
    shares_content,
    shares_reader,
    sums_content,
    unmask_content,
    words_reader,
)

logger = logging.getLogger("fedstats_app")

# Attempts at a sum that lost clients until a class had too few, each without that class.
SPARE_ROUNDS = 2


class NothingUnmasked(TooFewClients):
    """So many clients were lost that a sum was given up: the masks of all stay on it."""


@dataclass(frozen=True)
class Agreed:
    """State of a run of masks: what its parties have agreed on, and how far they are.

    Attributes
    ----------
    clients : tuple of int
        By party.
    active : tuple of int
        The parties that are not lost, ascending.
    plan : Plan
        Their entries.
    sealed : mapping
        From party to the sealed shares of its keys, by round of masks.
    turn : int
        Rounds of masks that are used.
    """

    clients: tuple[int, ...]
    active: tuple[int, ...]
    plan: Plan
    sealed: Mapping[int, Sequence[bytes]]
    turn: int = 0

    def sealed_for(self, party: int) -> bytes:
        """Return what the neighbours of a party sealed for it in this round, ascending."""
        parts = []
        for other in self.plan.neighbours_among(party, self.active):
            place = self.plan.neighbours(other).index(party)
            parts.append(self.sealed[other][self.turn][place * SEALED_BYTES : (place + 1) * SEALED_BYTES])
        return b"".join(parts)


@dataclass(frozen=True)
class Summed:
    """A sum.

    Attributes
    ----------
    words : Words
        Of the sum.
    holders : ndarray
        (C,) how many of the clients that were asked have each class.
    classes : ndarray
        (C,) bool, those that are in it.
    over : tuple of int
        The parties that are in it, ascending.
    agreed : Agreed
        The state after it.
    """

    words: Words
    holders: NDArray[np.int64]
    classes: NDArray[np.bool_]
    over: tuple[int, ...]
    agreed: Agreed


@dataclass
class Account:
    """Questions to clients, and an account of what came.

    Attributes
    ----------
    grid : Grid
        Whose nodes are the clients.
    failures : dict
        From every client that was lost to the reason.
    bytes_by_client : Counter
        Received.
    """

    grid: Grid
    failures: dict[int, str] = field(default_factory=dict)
    bytes_by_client: Counter[int] = field(default_factory=Counter)

    def doing(self, step: str) -> AbstractContextManager[object]:
        """Show progress of a step."""
        return self.grid.progress.doing(step) if isinstance(self.grid, ClientGrid) else nullcontext()

    def ask(self, messages: Iterable[Message], read: Callable[[Message], Any]) -> Iterable[tuple[int, Any]]:
        """Yield the answers that can be used as they come, and count their bytes."""
        messages = list(messages)
        clients = {int(message.metadata.dst_node_id) for message in messages}
        for client, reply, answer in usable(self.grid.send_and_receive(messages), read, self.failures, clients):
            size = num_bytes(reply.content) + sum(
                len(value)
                for record in reply.content.config_records.values()
                for value in record.values()
                if isinstance(value, bytes)
            )
            self.bytes_by_client[client] += size
            yield client, answer

    def added(
        self, content: RecordDict, message_type: str, party_of: Mapping[int, int], shapes: Shapes, query: str = ""
    ) -> MaskedSum:
        """Ask clients for their words of a sum, and add them up as they come."""
        total = MaskedSum([number for number, _ in shapes], query)
        for client, words in self.ask(to_all(content, message_type, party_of), words_reader(shapes)):
            total.add(party_of[client], words)
        return total

    def reasons(self) -> str:
        """Return the first failures in words, each reason once."""
        clients: dict[str, list[int]] = {}
        for client, reason in self.failures.items():
            clients.setdefault(reason, []).append(client)
        named = (
            f"client{'s' * (len(same) > 1)} {', '.join(map(str, same[:5]))}: {why}" for why, same in clients.items()
        )
        return first_reasons(list(named))


@dataclass
class MaskedRun(Account):
    """One run of masks, for exact sums or sums with noise. Its state is passed on and returned.

    Attributes
    ----------
    question : str
        All that is asked for.
    class_names : sequence of str
        Of the class lists in the plan; none with noise.
    rounds : int
        Of masks.
    """

    question: str = ""
    class_names: Sequence[str] = ()
    rounds: int = 1 + SPARE_ROUNDS

    def begin(self, clients: Sequence[int]) -> Agreed:
        """Ask for keys, and for shares of them: clients that answer both are parties that can be lost later.

        Raises
        ------
        NothingUnmasked
            If too few do, or too few classes are left.
        """
        nonce, number = secrets.token_bytes(KEY_BYTES), len(self.class_names)
        content = keys_content(Round(nonce, self.rounds, number), self.question)
        with self.doing("exchanging keys"):
            answers = dict(self.ask(to_all(content, SECURE_KEYS, clients), keys_reader(self.rounds, number)))
        entries = self.different({client: answers[client][0] for client in sorted(answers)})
        if len(entries) < 3:
            raise NothingUnmasked(f"secure sums take at least 3 clients, got {len(entries)}; {self.reasons()}")
        plan = Plan(nonce, self.rounds, number, tuple(entries.values()))
        self._say_classes(plan)
        content = shares_content(plan, sorted({found for client in entries for found in answers[client][1]}))
        with self.doing("exchanging shares of keys"):
            shares = dict(self.ask(to_all(content, SECURE_SHARES, entries), shares_reader(plan)))
        sealed = {party: shares[client] for party, client in enumerate(entries) if client in shares}
        agreed = Agreed(tuple(entries), tuple(sealed), plan, sealed)
        self._check_number(agreed, agreed.active)
        return agreed

    def different(self, entries: Mapping[int, Entry]) -> dict[int, Entry]:
        """Leave out clients that no plan can have: with another's identity or key, or a wish for too many."""
        seen: set[bytes] = set()
        kept = {}
        for client, own in entries.items():
            values = {own.identity, own.channel, *own.masks}
            if values & seen or len(values) < 2 + len(own.masks):
                self.failures[client] = "its keys are those of another client"
                continue
            if own.least > len(entries):
                wanted = f"its owner wants {own.least} clients in a sum (secure-min-clients)"
                self.failures[client] = f"{wanted}, {len(entries)} take part"
                continue
            seen |= values
            kept[client] = own
        return kept

    def summed(
        self,
        agreed: Agreed,
        kind: str,
        shapes: Callable[[NDArray[np.bool_]], Shapes],
        mean: Tensor | None = None,
        heads: Mapping[str, ArrayRecord] = MappingProxyType({}),
    ) -> Summed:
        """Return a sum; it begins anew if a class is left with too few clients.

        Parameters
        ----------
        agreed : Agreed
            The state before it.
        kind : str
            "sums", "mean" or "moments", or of scores one that names the heads.
        shapes : callable
            From the (C,) bool classes in a sum to its words.
        mean : Tensor or None
            (d,) float64, for "moments".
        heads : mapping
            Records of those to be scored.

        Raises
        ------
        NothingUnmasked
            If too few are left, or no round of masks is.
        """
        message_type = SECURE_SCORES if heads else SECURE_SUMS if kind == "sums" else SECURE_NOISY
        known = b"" if mean is None else mean.numpy().tobytes()
        while agreed.turn < agreed.plan.rounds:
            plan, active = agreed.plan, agreed.active
            classes, party_of = plan.classes(active), {agreed.clients[party]: party for party in active}
            content, query = sums_content(plan, agreed.turn, active, mean), query_of(self.question, kind, active, known)
            content.update(heads)
            with self.doing(f"secure sum ({(named := kind.partition('|')[0])})"):
                total = self.added(content, message_type, party_of, shapes(classes), query)
            left = tuple(sorted(total.survivors))
            self._check_number(agreed, left)
            if plan.leaves_few(active, left):
                logger.warning("the sum begins anew: clients were lost, and fewer than %d have some class", plan.least)
                agreed = replace(agreed, active=left, turn=agreed.turn + 1)
                continue
            with self.doing(f"secure sum ({named}), taking the masks off"):
                words, helped = self.unmasked(agreed, total, left)
            after = replace(agreed, active=helped, turn=agreed.turn + 1)
            return Summed(words, plan.holders(active), classes, left, after)
        raise NothingUnmasked(f"too many clients were lost in turn; {self.reasons()}")

    def unmasked(self, agreed: Agreed, total: MaskedSum, left: tuple[int, ...]) -> tuple[Words, tuple[int, ...]]:
        """Take the masks off a sum over the parties that are left; return its words and the parties that helped."""
        signatures, parties = b"", left
        if agreed.plan.is_signed:
            signed = {party: own for party, (_, own) in self._unmask_replies(agreed, left, left, b"").items()}
            signatures = b"".join(signed.get(party) or bytes(SIGNATURE_BYTES) for party in left)
            parties = tuple(sorted(signed))
        answers: dict[int, list[bytes]] = {}
        for party, (shares, _) in self._unmask_replies(agreed, left, parties, signatures).items():
            wanted = len(agreed.plan.neighbours_among(party, agreed.active))
            if len(shares) == wanted:
                answers[party] = shares
            else:
                self.failures[agreed.clients[party]] = f"it must give {wanted} shares, got {len(shares)}"
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
        return {party_of[client]: answer for client, answer in self.ask(messages, read_unmask_reply)}

    def _say_classes(self, plan: Plan) -> None:
        """Name the classes that are left out before anything is summed."""
        found = zip(self.class_names, plan.classes(range(len(plan.parties))), strict=True)
        summed = {name: is_summed for name, is_summed in found if name != HELD_OUT}
        few = [name for name, is_summed in summed.items() if not is_summed]
        if not few:
            return
        left_out = f"secure sums leave out classes that fewer than {plan.least} clients have: {first_few(few, 10)}"
        if len(summed) - len(few) < 2:
            raise NothingUnmasked(f"{left_out}; fewer than two are left: let sites with the same classes take part")
        logger.warning("%s", left_out)

    def _check_number(self, agreed: Agreed, parties: Sequence[int]) -> None:
        if len(parties) < agreed.plan.least_left:
            raise NothingUnmasked(
                f"{len(parties)} of {len(agreed.clients)} clients are left, secure sums need {agreed.plan.least_left} "
                f"of them: nothing was unmasked; {self.reasons()}"
            )


class SecureStatisticsStrategy(StatisticsStrategy):
    """Serves methods whose statistics add up from one secure sum: the server sees no client's part.

    Parameters
    ----------
    exact_samples : int
        As many samples as all clients can have together.
    num_classes, methods, options
        Of :class:`StatisticsStrategy`.

    Attributes
    ----------
    after : tuple of MaskedRun and Agreed
        The run of masks after the sum, and its state.

    Raises
    ------
    ValueError
        If a method needs statistics that do not add up.
    """

    after: tuple[MaskedRun, Agreed]

    def __init__(self, num_classes: int, methods: Sequence[Any], *, exact_samples: int, **options: Any) -> None:
        for method in methods:
            if reason := cannot_add(method):
                raise ValueError(f"secure-sums: {reason}")
        super().__init__(num_classes, methods, exact_samples=exact_samples, **options)
        if self.feature_dim is None:
            raise ValueError("secure-sums: need the feature dimension, got None")
        if labels := self.request.spec.targets == "labels":
            names = (EVERY_SAMPLE, *self.request.class_names)
            self.request = replace(self.request, num_classes=len(names), class_names=names)
        self._samples = exact_samples
        spread = any(method.keeps_rows for method in methods)
        self._layout = SecureLayout(
            self.feature_dim, exact_samples, self._limits.norm, self.request.spec.gram, spread, labels
        )

    def collect(self, grid: Grid, timeout: float | None = None) -> None:
        """Sum over all clients; arguments as of :meth:`StatisticsStrategy.collect`.

        Raises
        ------
        TooFewClients
            If too many clients were lost to unmask anything.
        """
        clients = sorted(grid.get_node_ids())
        self._asked = set(clients)
        self._sum(grid, clients)

    def masked_run(self, grid: Grid) -> MaskedRun:
        """Return a run of masks for the sum and all scores of its heads."""
        layout = self._layout
        request = replace(self.request, spec=replace(self.request.spec, fraction_bits=layout.bits))
        question = question_text(request, SumRequest(layout.samples, layout.norm, layout.spread))
        names = class_names_in(question)
        # All heads are scored together, but for labels each by itself.
        scored = len(self.methods()) if self.request.spec.targets else 1
        rounds = min(1 + SPARE_ROUNDS + scored, MOST_ROUNDS)
        return MaskedRun(grid, question=question, class_names=names, rounds=rounds)

    def _sum(self, grid: Grid, clients: Sequence[int]) -> None:
        """Take a sum over clients into the collection."""
        layout, run, number = self._layout, self.masked_run(grid), self.request.num_classes
        found = run.summed(run.begin(clients), "sums", lambda classes: layout.shapes(int(classes[:number].sum())))
        # Scores are of the parties in this sum only: another set would tell of those that are in one of both.
        self.after = run, replace(found.agreed, active=found.over)
        classes = torch.from_numpy(found.classes[:number])
        total, products = layout.read(found.words, classes)
        left = torch.from_numpy(found.agreed.plan.holders(found.over)[:number])
        if products is not None:
            weights = mean_weights(torch.from_numpy(found.holders[:number]), classes)
            counts = total.class_counts.to(torch.float64)
            totals = ClassTotals(counts, torch.where(classes, left, 0).double(), total.class_sums, total.class_means)
            self._summed_rows = SummedRows(totals, fedcof_scatter(products, total, weights, left))
        merged = [found.agreed.clients[party] for party in found.over]
        self._take(run, found.agreed.clients, total, merged, int(left[classes].sum()))

    def _take(
        self, run: Account, clients: Sequence[int], total: FeatureStatistics, merged: Sequence[int], pairs: int
    ) -> None:
        summed = StatisticsSum.resumed(total, None, num_rows=pairs, num_pairs=pairs)
        self.collection.take_sum(summed, merged, sum(run.bytes_by_client[client] for client in clients))
        for client in sorted(self._asked):
            outcome = _outcome(
                client, run.failures.get(client, ""), run.bytes_by_client[client], merged=client in merged
            )
            self.outcomes.append(outcome)
            if self.on_reply is not None:
                self.on_reply(outcome, None)

    def summed_scores(
        self, heads: Mapping[str, LinearHead], left_out: LeaveOneOut | TargetLeaveOneOut | None = None
    ) -> dict[str, Tensor]:
        """Sum the scores of heads over the clients in the sum: on samples held out of it, or on those in it.

        With ``left_out``, of the only head, each sample is left out of it.

        Returns
        -------
        dict
            By method, (n,) int64, the numbers of :mod:`fedstats_app.heads.summed_scores`, or of labels.

        Raises
        ------
        NothingUnmasked
            If too many clients were lost, or refuse.
        """
        run, agreed = self.after
        if left_out is None and not agreed.plan.classes(agreed.active)[self.request.num_classes :].any():
            raise NothingUnmasked(f"fewer than {agreed.plan.least} clients keep samples aside")
        targets = self.request.spec.targets
        size = (TargetScores if targets else SummedScores).num_numbers(self.num_classes)
        content = heads_content(heads, left_out, targets)
        kind, shapes = f"{SCORES}|{heads_digest(content)}", [(size * len(heads), WORD_BYTES)]
        found = run.summed(agreed, kind, lambda _: shapes, heads=content.array_records)
        self.after = run, replace(agreed, turn=found.agreed.turn)
        numbers = torch.from_numpy(found.words[0].view(np.int64)).reshape(len(heads), size)
        return dict(zip(heads, numbers, strict=True))

    def wire_bytes(self, method: str) -> int:
        """Return the bytes, of all that was received, that a method needed."""
        configured, shapes = self.methods()[method], self._layout.shapes(0)
        sizes = dict(zip(("gram",) * self._layout.gram + ("spread",) * self._layout.spread, shapes[2:], strict=True))
        unused = {"gram": Need.GRAM not in configured.needs, "spread": not configured.keeps_rows}
        each = sum(number * size for name, (number, size) in sizes.items() if unused[name])
        return self.collection.total_wire_bytes - each * self.collection.num_merged


def _outcome(client: int, reason: str, sent: int, *, merged: bool) -> ClientOutcome:
    if merged:
        warning = f"lost after its class sums were summed: {reason}" if reason else ""
        return ClientOutcome(client, "merged", wire_bytes=sent, warning=warning)
    kind = "refused" if reason.startswith(("RefusedByPolicy: ", "RejectedRequest: ")) else "failed"
    return ClientOutcome(client, kind, reason or "it was lost before its class sums were summed")
