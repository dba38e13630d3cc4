"""Memory of a node with data of its own: releases of its samples, questions and answers.

No torch is imported here: a node says which classes it has without.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from fedstats_app.base.files import write_atomically
from fedstats_app.base.ledger import Exhausted, LedgerError, LedgerFile
from fedstats_app.data.clients import data_spec, own_dataset
from fedstats_app.data.contents import sample_identities
from fedstats_app.data.data_options import is_table
from fedstats_app.data.differences import ReleasedSet, small_groups, smallest_group_of_squares, withheld_in
from fedstats_app.data.feature_cache import default_cache_root
from fedstats_app.data.persons import place_samples
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import STATE_FOLDER, NodeConfig
from fedstats_app.training.limits import RefusedByPolicy
from fedstats_app.wire.keeping import arrays_digest, content_digest

if TYPE_CHECKING:
    from fedstats_app.data.dataset import Dataset
    from fedstats_app.secure.plan import Plan

logger = logging.getLogger("fedstats_app")

# Runs that are remembered, the last ones.
KEPT_RUNS = 64
MEGABYTE = 1_000_000

SUMS, HEADS = "secure sums", "scored heads"
# An owner's keys for them.
LIMITS = {SUMS: "max-releases", HEADS: "max-heads-scored"}
_KEY_BYTES = 16


class DataWait(RefusedByPolicy):
    """A release of these data would tell, with earlier ones, of fewer samples than the floor."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Which of a node's samples are used, and how.

    Attributes
    ----------
    version : str
        Digest of the samples that are used; what was spent is counted for each.
    keys : ndarray
        (n,) S16, by which each sample of a class is known.
    place : ndarray
        (n,) int8, as of :func:`fedstats_app.data.persons.place_samples`: those in use have 0 or more.
    """

    version: str
    keys: NDArray[np.bytes_]
    place: NDArray[np.int8]


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
        """Return the layout of the data as they are now; new samples are used once they are as many as the floor."""
        share = float(self._file.fact("holdout-fraction", str(self._data.holdout_fraction)))
        dataset, files = self._files()
        files = _digest([files, self._floor, share])
        with self._file.transaction() as connection:
            row = connection.execute("select keys, places from layout where files = ?", (files,)).fetchone()
        if row is None:
            # Every file is read, once for data that do not change: not while other processes wait for the ledger.
            row = self._draw(files, sample_keys(dataset), dataset, share)
        keys, place = np.frombuffer(row[0], dtype=f"S{_KEY_BYTES}"), np.frombuffer(row[1], dtype=np.int8)
        return Layout(digest_of_keys(keys[place >= 0]), keys, place)

    def check_unchanged(self) -> None:
        """Refuse if a sample in use is no longer what it was when it was placed; call it once all were read.

        What was read would lack, or hold in another's place, exactly this sample. Every file is read again.
        """
        layout, dataset = self.layout(), own_dataset(self._node.data_path, self._data)
        used = layout.place >= 0
        if np.array_equal(sample_keys(dataset)[used], layout.keys[used]):
            return
        with self._file.transaction() as connection:
            connection.execute("delete from layout")
        own_dataset.cache_clear()
        logger.error("refused: files changed while they were read, or at the same size and time")
        raise RefusedByPolicy("this node's data changed while they were read: ask again")

    def _files(self) -> tuple[Dataset, str]:
        """Return the data, and a digest of their files' names, sizes and times and of how they are read."""
        dataset, reading = own_dataset(self._node.data_path, self._data), sorted(self._data.reading.items())
        persons = [self._data.person_column, self._data.max_per_person]
        return dataset, _digest([dataset.fingerprint, reading, _table_stamp(self._node.data_path), persons])

    def _draw(self, files: str, keys: NDArray[np.bytes_], dataset: Dataset, share: float) -> tuple[bytes, bytes]:
        with self._file.transaction() as connection:
            rows = connection.execute("select key, held_out, person from sample").fetchall()
            persons = _as_bytes(keys if dataset.persons is None else dataset.persons)
            samples = list(zip(_as_bytes(keys), dataset.labels.tolist(), persons, strict=True))
            whose = {key: person for key, _, person in samples}
            if any(whose.get(key, person) != person for key, _, person in rows):
                rows = []  # persons are others: what was released is remembered apart
                connection.execute("delete from sample")
            known, held = {key: out for key, out, _ in rows}, {person: out for _, out, person in rows}
            most = self._data.max_per_person
            place = place_samples(samples, known, held, floor=self._floor, fraction=share, most=most)
            new = [
                (key, int(out), person)
                for (key, _, person), out in zip(samples, place, strict=True)
                if out >= 0 and key not in known
            ]
            connection.executemany("insert into sample values (?, ?, ?)", new)
            row = keys.tobytes(), place.tobytes()
            connection.execute("insert or replace into layout values (0, ?, ?, ?)", (files, *row))
        return row

    def spend(self, kind: str, questions: Iterable[str]) -> None:
        """Note questions before they are answered, or refuse where they would be too many."""
        limit = {SUMS: self._node.max_releases, HEADS: self._node.max_heads}[kind]
        try:
            self._file.spend(self.layout().version, kind, questions, limit)
        except Exhausted as error:
            logger.error("refused: %s (%s)", error, LIMITS[kind])
            raise RefusedByPolicy(
                f"this node answers at most {limit} different {kind} ({LIMITS[kind]}) for one version of its data"
            ) from None

    def releases(self, network: str, chosen: str = "") -> list[tuple[Path, float]]:
        """List the files of releases for a network and when each was made, the newest first; of ``chosen`` samples."""
        with self._file.transaction() as connection:
            rows = connection.execute(
                "select number, made from release where network = ? and ? in (chosen, '') order by number desc",
                (network, chosen),
            ).fetchall()
        found = [(self._path(number), made) for number, made in rows]
        return [(path, made) for path, made in found if path.is_file()]

    def withheld(self, new: ReleasedSet, chosen: str) -> list[int]:
        """Return the targets that a release must withhold, unless the owner allows it; see :func:`withheld_in`."""
        with self._file.transaction() as connection:
            rows = connection.execute("select body from release").fetchall()
            if connection.execute("select 1 from fact where name = ?", (f"release-allowed|{chosen}",)).fetchone():
                rows = []
        return withheld_in([_from_bytes(body) for (body,) in rows], new, self._floor)

    def check_release(self, new: ReleasedSet, chosen: str) -> int | None:
        """Refuse a release that with earlier ones would tell of too few samples of a class, unless the owner allows it.

        Returns
        -------
        int or None
            Samples of the smallest group over all classes of which sums of products would tell; None if there is no
            such group, or the owner allows it.

        Raises
        ------
        DataWait
            If it is refused, or as many releases were made of these samples as the owner allows.
        """
        with self._file.transaction() as connection:
            return self._checked(connection, new, chosen)

    def keep_release(
        self, new: ReleasedSet, chosen: str, network: str, question: str, write: Callable[[Path], None]
    ) -> Path:
        """Write the file of a release and note it, for good, before any of it leaves; return the path.

        Another process may have made it in the meantime; then that file is the release.
        """
        with self._file.transaction() as connection:
            known = connection.execute("select number from release where question = ?", (question,)).fetchone()
            if known is not None:
                if not self._path(known[0]).is_file():  # its owner moved it away: the same is made again
                    write(self._path(known[0]))
                return self._path(known[0])
            self._checked(connection, new, chosen)
            (number,) = connection.execute("select count(*) from release").fetchone()
            self._path(number).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write(self._path(number))
            values = (number, question, self._version(connection), chosen, network, time.time(), _to_bytes(new))
            connection.execute("insert into release values (?, ?, ?, ?, ?, ?, ?)", values)
        return self._path(number)

    def _version(self, connection: sqlite3.Connection) -> str:
        keys, place = connection.execute("select keys, places from layout").fetchone()
        used = np.frombuffer(place, dtype=np.int8) >= 0
        return digest_of_keys(np.frombuffer(keys, dtype=f"S{_KEY_BYTES}")[used])

    def _checked(self, connection: sqlite3.Connection, new: ReleasedSet, chosen: str) -> int | None:
        rows = connection.execute("select version, body from release").fetchall()
        version, most = self._version(connection), self._node.max_releases
        if sum(made_of == version for made_of, _ in rows) >= most:
            raise DataWait(f"this node makes at most {most} releases (max-releases) of one version of its data")
        if connection.execute("select 1 from fact where name = ?", (f"release-allowed|{chosen}",)).fetchone():
            return None
        earlier = [_from_bytes(body) for _, body in rows]
        if few := small_groups(earlier, new, self._floor):
            text = ", ".join(f"{number} of {name}" for name, number in few.items())
            fact = (f"release-waits|{chosen}", f"with earlier releases, one of the data as they are tells of {text}")
            connection.execute("insert or ignore into fact values (?, ?)", fact)
            connection.execute("commit")
            connection.execute("begin immediate")
            raise DataWait("this node's data changed by too few samples for a further release: its owner can allow it")
        return smallest_group_of_squares(earlier, new) if new.squares else None

    def _path(self, number: int) -> Path:
        return self._file.path.with_suffix("") / f"release-{number}.fedstats"

    def identity(self, *, noisy: bool = False) -> bytes:
        """Return 16 random bytes by which this version of the node's data is known in secure sums, for good.

        Noise is of all samples, not of cells: any file that changed makes another version, and all sites' noise anew.
        """
        from fedstats_app.secure.plan import IDENTITY_BYTES  # other runs do without

        name = f"secure-identity|{self._files()[1] if noisy else self.layout().version}"
        return bytes.fromhex(self._file.fact(name, secrets.token_hex(IDENTITY_BYTES)))

    def check_hold_out(self, names: Collection[str], held_out: str) -> None:
        """Refuse class lists with a name for samples held out where earlier sums had none, and the reverse.

        The difference of the two would be these samples, perhaps of one site.
        """
        if any((held_out in json.loads(content)["classes"]) != (held_out in names) for content in self.summed_sets()):
            wanted = "0: earlier ones are of all samples" if held_out in names else "above 0, as for earlier ones"
            raise RefusedByPolicy(f"holdout-fraction for this node's secure sums must be {wanted}")

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
        """Return the key of the noise that answers a question: the same each time, known to this node alone."""
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


@functools.lru_cache(maxsize=8)
def ledger_of(config: AppConfig, node: NodeConfig) -> Ledger | None:
    """Return a node's ledger; None for nodes that host partitions."""
    return Ledger(config, node) if node.data_path else None


def note_heads(ledger: Ledger, content: RecordDict, context: Context) -> None:
    """Write down the heads of a message before they meet samples of the site, or refuse where they would be too many.

    The rest of the content and the run's configuration are part of a question: they can raise the floor, or hide
    classes.
    """
    settings = sorted(context.run_config.items())
    heads = {name: record for name, record in content.items() if name.startswith("head.")}
    rest = {name: record for name, record in content.items() if name not in heads}
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


def sample_keys(dataset: Dataset) -> NDArray[np.bytes_]:
    """Return (n,) S16, for each sample a digest of its class and of what it holds."""
    names = [name.encode("utf-8", "surrogatepass") + b"\0" for name in dataset.class_names]
    if dataset.targets is not None:  # the same sample whatever its targets are
        names = [b"\0"]
    keys = [
        hashlib.blake2b(names[label] + identity, digest_size=_KEY_BYTES).digest()
        for label, identity in zip(dataset.labels.tolist(), sample_identities(dataset), strict=True)
    ]
    return np.frombuffer(b"".join(keys), dtype=f"S{_KEY_BYTES}")


def digest_of_keys(keys: NDArray[np.bytes_]) -> str:
    """Return the SHA-256 of some samples' keys, 64 hex digits, whatever their order."""
    return hashlib.sha256(np.sort(keys).tobytes()).hexdigest()


def _as_bytes(keys: NDArray[np.bytes_]) -> list[bytes]:
    """Return each key whole; numpy's own leave zeros at the end out."""
    data = keys.tobytes()
    return [data[begin : begin + _KEY_BYTES] for begin in range(0, len(data), _KEY_BYTES)]


def _to_bytes(released: ReleasedSet) -> bytes:
    shape = [] if released.sets is None else list(released.sets.shape)
    header = json.dumps([released.class_names, released.squares, *shape]).encode()
    parts = [released.keys, released.persons, released.labels.astype("<i4"), released.rows.astype("<i4")]
    packed = b"" if released.sets is None else np.packbits(released.sets).tobytes()
    return len(header).to_bytes(4, "little") + header + packed + b"".join(part.tobytes() for part in parts)


def _from_bytes(body: bytes) -> ReleasedSet:
    end = 4 + int.from_bytes(body[:4], "little")
    class_names, squares, *shape = json.loads(body[4:end])
    sets, begin = None, end
    if shape:
        cells = math.prod(shape)
        end += (cells + 7) // 8
        packed = np.frombuffer(body[begin:end], dtype=np.uint8)
        sets = np.unpackbits(packed, count=cells).astype(np.bool_).reshape(shape)
    number = (len(body) - end) // (2 * _KEY_BYTES + 8)
    keys, persons = np.frombuffer(body, f"S{_KEY_BYTES}", 2 * number, end).reshape(2, -1)
    labels, rows = np.frombuffer(body, "<i4", offset=end + 2 * _KEY_BYTES * number).reshape(2, -1).astype(np.int64)
    return ReleasedSet(keys, persons, labels, rows, tuple(class_names), squares, sets)


def _table_stamp(path: str) -> list[list[object]]:
    """Return names and times of table files, whose fingerprint does not tell of every change."""
    if not is_table(data_spec(path)):
        return []
    place = Path(path).expanduser()
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
