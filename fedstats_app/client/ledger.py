"""Memory of a node with data of its own: cells of samples, questions and answers.

No torch is imported here: a node says which classes it has without.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import secrets
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from fedstats_app.base.files import write_atomically
from fedstats_app.base.ledger import (
    Cell,
    Exhausted,
    LedgerError,
    LedgerFile,
    add_cells,
    begin_generation,
    cells_of,
    newest_generation,
)
from fedstats_app.data.clients import data_spec, own_dataset
from fedstats_app.data.contents import draw_cells, sample_identities
from fedstats_app.data.data_options import is_table
from fedstats_app.data.feature_cache import default_cache_root
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import STATE_FOLDER, NodeConfig
from fedstats_app.training.limits import RefusedByPolicy
from fedstats_app.wire.keeping import arrays_digest, content_digest, content_from_bytes, content_to_bytes

if TYPE_CHECKING:
    from fedstats_app.data.dataset import Dataset
    from fedstats_app.secure.plan import Plan
    from fedstats_app.wire.statistics import StatisticsRequest

logger = logging.getLogger("fedstats_app")

# Runs that are remembered, the last ones.
KEPT_RUNS = 64
MEGABYTE = 1_000_000

QUESTIONS, HEADS = "statistics questions", "scored heads"
# An owner's keys for them.
LIMITS = {QUESTIONS: " (max-statistics-questions)", HEADS: " (max-heads-scored)"}


@dataclass(frozen=True, eq=False)
class Layout:
    """Which of a node's samples are used, and how.

    Attributes
    ----------
    generation : int
        Of the data: what was spent is counted for each.
    in_use : str
        Digest of the cells whose samples are all there.
    cell : ndarray
        (n,) int64, number of each sample's cell, -1 for samples that are in none or whose cell is not whole.
    held_out : ndarray
        (n,) bool.
    """

    generation: int
    in_use: str
    cell: NDArray[np.int64]
    held_out: NDArray[np.bool_]


def _name_of(node: NodeConfig) -> str:
    """Name a node's files by its data, however their path is spelt: nodes of one user may share a state-dir."""
    return hashlib.sha256(os.path.realpath(Path(node.data_path).expanduser()).encode()).hexdigest()[:16]


class _File(LedgerFile):
    """Refuses, without the path, what cannot be written down; the reason is in the log."""

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Give a connection as :class:`LedgerFile` does."""
        try:
            with super().transaction() as connection:
                yield connection
        except LedgerError as error:
            logger.error("the ledger cannot be kept: %s", error)
            raise RefusedByPolicy(
                "this node answers nothing, because it cannot write its ledger (state-dir; the reason is in its log)"
            ) from error


class Ledger:
    """The ledger of one node; every method refuses where it cannot be written."""

    def __init__(self, config: AppConfig, node: NodeConfig) -> None:
        self._node, self._data, self._floor = node, node.data_options(config.data), max(node.class_floor(0), 1)
        name = _name_of(node)
        own = node.state_root(config.cache) / f"ledger-{name}.sqlite"
        self._file = _File(_first_place(default_cache_root() / STATE_FOLDER / f"ledger-{name}.place", own))

    def open(self) -> None:
        """Make the ledger if it is not there, or refuse."""
        self._file.fact("data", self._node.data_path)

    def layout(self) -> Layout:
        """Return the layout of the data as they are now; new samples get a cell once they are as many as the floor."""
        share = float(self._file.fact("holdout-fraction", str(self._data.holdout_fraction)))
        dataset, files = self._files()
        key = _digest([files, self._floor, share])
        if (kept := self._kept(key)) is not None:
            return kept
        # Every file is read, once for data that do not change: not while other processes wait for the ledger.
        by_class: defaultdict[str, dict[bytes, int]] = defaultdict(dict)
        for index, identity in enumerate(sample_identities(dataset)):
            by_class[dataset.class_names[dataset.labels[index]]][identity] = index
        return self._draw(key, by_class, len(dataset), share)

    def check_unchanged(self) -> None:
        """Refuse if a sample in use is no longer what it was when its cell was drawn; call it once all were read.

        What was read would lack, or hold in another's place, exactly this sample. Every file is read again.
        """
        cell = self.layout().cell
        identities = sample_identities(own_dataset(self._node.data_path, self._data))
        with self._file.transaction() as connection:
            members = {cell.number: set(cell.members) for cell in cells_of(connection)}
            used = np.flatnonzero(cell >= 0).tolist()
            if all(identities[index] in members[int(cell[index])] for index in used):
                return
            connection.execute("delete from layout")
        own_dataset.cache_clear()
        logger.error("refused: files changed while they were read, or at the same size and time")
        raise RefusedByPolicy("this node's data changed while they were read: ask again")

    def _files(self) -> tuple[Dataset, str]:
        """Return the data, and a digest of their files' names, sizes and times and of how they are read."""
        dataset, reading = own_dataset(self._node.data_path, self._data), sorted(self._data.reading.items())
        return dataset, _digest([dataset.fingerprint, reading, _table_stamp(self._node.data_path)])

    def _kept(self, key: str) -> Layout | None:
        with self._file.transaction() as connection:
            row = connection.execute("select generation, cells from layout where key = ?", (key,)).fetchone()
        return None if row is None else _layout(row[0], np.frombuffer(row[1], dtype="<i8"))

    def _draw(self, key: str, by_class: Mapping[str, Mapping[bytes, int]], number: int, share: float) -> Layout:
        with self._file.transaction() as connection:
            cells = cells_of(connection)
            taken = {(cell.class_name, member) for cell in cells for member in cell.members}
            for name, samples in by_class.items():
                new = [identity for identity in samples if (name, identity) not in taken]
                add_cells(connection, name, draw_cells(new, self._floor, share))
            placed, in_use, missing = np.full(number, -1, dtype="<i8"), set(), Counter[str]()
            newest = newest_generation(connection)
            for cell in cells_of(connection):
                indices = [by_class.get(cell.class_name, {}).get(member) for member in cell.members]
                there = [index for index in indices if index is not None]
                if len(there) == len(indices):
                    in_use.add(cell.number)
                    placed[there] = _code(cell)
                elif newest is not None and cell.number in newest[1]:
                    missing[cell.class_name] += len(indices) - len(there)
            if newest is None or in_use - newest[1] or max(missing.values(), default=0) >= self._floor:
                generation = begin_generation(connection, in_use)
            else:
                generation = newest[0]
            values = (key, generation, placed.tobytes())
            connection.execute("insert or replace into layout values (0, ?, ?, ?)", values)
        return _layout(generation, placed)

    def spend(self, kind: str, questions: Iterable[str]) -> None:
        """Note questions before they are answered, or refuse where they would be too many."""
        limit = {QUESTIONS: self._node.max_questions, HEADS: self._node.max_heads}[kind]
        generation = self.layout().generation
        try:
            self._file.spend(generation, kind, questions, limit)
        except Exhausted as error:
            logger.error("refused: %s%s", error, LIMITS[kind])
            raise RefusedByPolicy(
                f"this node answers at most {limit} different {kind}{LIMITS[kind]} for one version of its data"
            ) from None

    def identity(self, *, noisy: bool = False) -> bytes:
        """Return 16 random bytes by which this version of the node's data is known in secure sums, for good.

        Noise is of all samples, not of cells: any file that changed makes another version, and all sites' noise anew.
        """
        from fedstats_app.secure.plan import IDENTITY_BYTES  # other runs do without

        name = f"secure-identity|{self._files()[1] if noisy else self.layout().in_use}"
        return bytes.fromhex(self._file.fact(name, secrets.token_hex(IDENTITY_BYTES)))

    def keep_signers(self, plan: Plan, allowed: Collection[bytes]) -> None:
        """Note who signed for which data, or refuse a party that says its data are those of another one.

        A sum over the other one and a sum over this one would be taken for the same. A signer that is no longer
        ``allowed`` has given way to another.
        """
        seen = {tuple(name.split("|")[1:]) for name in self._file.among("secure-signer")}
        here = {party.identity.hex(): party.signer.hex() for party in plan.parties}
        if any(here.get(data, signer) != signer and bytes.fromhex(signer) in allowed for data, signer in seen):
            raise RefusedByPolicy("a party says its data are those of another of this node's secure-peers")
        for data, signer in here.items() - seen:
            self._file.fact(f"secure-signer|{data}|{signer}", "")

    def summed_sets(self) -> list[bytes]:
        """List the sets of parties of all sums with these data in any version (:mod:`fedstats_app.secure.sets`)."""
        return sorted(text.encode() for text in self._file.among("secure-set").values())

    def check_set(self, content: bytes, others: Collection[bytes], least: int, *, note: bool = False) -> None:
        """Refuse a sum over a set of parties that, with earlier ones, would tell one over fewer than ``least``.

        ``others`` are the sets that other parties' data were in. With ``note`` this one is kept among them, for good;
        what is refused waits for the owner's word.
        """
        from fedstats_app.secure.sets import classes_of_few, digest_of_set

        digest, few = digest_of_set(content).hex(), list[str]()
        allowed = f"secure-allowed|{digest}" in self._file.among("secure-allowed")

        def check(values: Iterable[str]) -> None:
            few[:] = classes_of_few(content, [*map(str.encode, values), *others], least)
            if few and not allowed:
                raise RefusedByPolicy("a sum over other clients or data than before waits for this node's owner")

        try:
            if note:
                self._file.note_among("secure-set", content.decode(), lambda values: check(values[:-1]))
            else:
                check(self._file.among("secure-set").values())
        except RefusedByPolicy:
            text = f"with earlier sums it tells what fewer than {least} clients have of {', '.join(few)}"
            self._file.fact(f"secure-waits|{digest}", text)
            raise

    def noise_key(self, question: str) -> bytes:
        """Return the key of the noise that answers a question: the same for the same one, and known to nobody else."""
        from fedstats_app.secure.masks import derived

        secret = bytes.fromhex(self._file.fact("dp-secret", secrets.token_hex(32)))
        return derived(secret, b"", f"noise|{question}")

    def charge(self, question: str, mu: float, run: int, *, room: float) -> None:
        """Write down what an answer with noise tells, its mu, before it leaves, for good, or refuse.

        What is known already tells nothing new. All versions of the data count together: they share samples. The
        account must have ``room`` for the mu of the answers to come too, lest they be refused.
        """
        from fedstats_app.secure.account import composed, epsilon_of, fits

        limit, delta = self._node.dp_max_epsilon, self._node.dp_max_delta

        def check(values: list[str]) -> None:
            mus = [*(float(json.loads(entry)[1]) for entry in values[:-1]), room]
            if limit is None or delta is None or fits(mus, limit, delta):
                return
            logger.error("refused: the account would be at %s", composed(mus))
            raise RefusedByPolicy(
                f"this node's account of its data would come to epsilon {epsilon_of(composed(mus), delta):.3g} at its "
                f"owner's delta {delta:g}, and ends at {limit:g} (dp-max-epsilon)"
            )

        self._file.note_among("dp-spent", json.dumps([question, mu]), check)
        self._file.fact(f"dp-of-run|{run}|{question}", repr(mu))

    def keep_survivors(self, question: str, parties: Sequence[str]) -> None:
        """Refuse to unmask noise that was unmasked over other parties: the difference would be without it."""
        kept = json.dumps(list(parties))
        if self._file.fact(f"dp-survivors|{question}", kept) != kept:
            raise RefusedByPolicy(
                "the same question was answered over other clients, with the same noise: another seed gives fresh "
                "noise, which is charged"
            )

    def answered(
        self, request: StatisticsRequest, fingerprint: str, rules: object, form: Callable[[], RecordDict]
    ) -> RecordDict:
        """Return what was answered to a request for statistics, or form the answer and keep it before it leaves.

        The request's seed and the size of its hold-out change nothing. The answer depends on the backbone's
        fingerprint, and on the rules, told apart by their text.
        """
        context = [fingerprint, bool(request.holdout), repr(rules)]
        spec = _digest([request.spec.to_dict(), *context])
        question = _digest([spec, request.wire_dtype, request.num_classes, list(request.class_names)])
        in_use = self.layout().in_use
        if (kept := self._file.answer(in_use, question)) is not None and kept[1] is not None:
            return content_from_bytes(kept[1])
        self.spend(QUESTIONS, [spec])
        content = form()
        self.check_unchanged()
        # The time that it took is part of what is given again, but not of what must be the same.
        digest = content_digest({name: record for name, record in content.items() if name != "metrics"})
        kept_digest, body = self._file.keep(in_use, question, digest, content_to_bytes(content))
        if body is not None:
            return content_from_bytes(body)
        if kept_digest != digest:
            raise RefusedByPolicy("this node has answered this with other numbers before, and will not give both")
        return content


@functools.lru_cache(maxsize=8)
def ledger_of(config: AppConfig, node: NodeConfig) -> Ledger | None:
    """Return a node's ledger; None for nodes that host partitions."""
    return Ledger(config, node) if node.data_path else None


def note_heads(ledger: Ledger, msg: Message, context: Context) -> None:
    """Write down the heads of a message before they meet samples of the site, or refuse where they would be too many.

    The rest of the message and the run's configuration are part of a question: they can raise the floor, or hide
    classes.
    """
    settings = sorted(context.run_config.items())
    heads = {name: record for name, record in msg.content.items() if name.startswith("head.")}
    rest = {name: record for name, record in msg.content.items() if name not in heads}
    ledger.spend(HEADS, [_digest([settings, content_digest({**rest, "head": head})]) for head in heads.values()])


def _first_place(known: Path, own: Path) -> Path:
    """Return where the ledger of some data is: where it was first, also if the node's state-dir is another by now.

    ``known`` is a file that says where that was, the same for all nodes of a user; ``own`` where this node would have
    it.
    """
    with suppress(OSError, ValueError):
        first = Path(known.read_text(encoding="utf-8"))
        if not first.is_file() or not first.stat().st_size:
            consequence = "what it remembered is forgotten, also what noise was charged"
            logger.warning("the ledger of these data was %s and is gone or empty: %s", first, consequence)
        if first.is_file():
            if first != own:
                logger.warning("the ledger of these data is %s, not in this node's state-dir", first)
            return first
    with suppress(OSError):  # without such a place the state-dir alone says it
        known.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(known, str(own.absolute()).encode(), mode=0o600)
    return own


def is_within_budget(reply: Message, config: AppConfig, node: NodeConfig, run_id: int) -> bool:
    """Return whether a node may send a reply by the arrays that its run has got, and write it down if so."""
    if not node.data_path or not reply.has_content():
        return True
    # What is not in arrays is small.
    size = sum(record.count_bytes() for record in reply.content.array_records.values())
    if not size:
        return True
    path = node.state_root(config.cache) / f"sent-{_name_of(node)}.json"
    sent, kind = _sent(path), reply.metadata.message_type
    own = sent.pop(str(run_id), {"bytes": 0})
    own["bytes"] += size
    if own["bytes"] > node.request_limits.max_run_megabytes * MEGABYTE:
        return False
    # By which the site's owner shows what left it.
    own[kind] = arrays_digest(reply.content, own.get(kind, ""))
    newest = [*sent.items(), (str(run_id), own)][-KEPT_RUNS:]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, json.dumps(dict(newest)).encode(), mode=0o600)
    return True


def _sent(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8")).items()
        return {run: sent for run, sent in kept if isinstance(sent, dict)}
    except (OSError, ValueError, AttributeError):
        return {}


def _layout(generation: int, placed: NDArray[np.int64]) -> Layout:
    used = placed >= 0
    in_use = hashlib.sha256(np.unique(placed[used]).astype("<i8").tobytes()).hexdigest()
    return Layout(generation, in_use, np.where(used, placed >> 1, -1), used & ((placed & 1) == 1))


def _code(cell: Cell) -> int:
    return 2 * cell.number + cell.held_out


def _table_stamp(path: str) -> list[list[object]]:
    """Return names and times of table files, whose fingerprint does not tell of every change."""
    if not is_table(data_spec(path)):
        return []
    place = Path(path).expanduser()
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
