"""The file in which a node remembers what it answered: SQLite, so that a crash leaves all of an answer or nothing.

It knows nothing of samples or messages: cells are numbers with a class and members, questions are digests.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

# Bytes of an answer that are kept themselves; of a longer one its digest, and it is formed again.
MAX_KEPT_BYTES = 2**26
PATTERN = "ledger-*.sqlite"
ID_BYTES = 16
_WAIT_SECONDS = 60.0
_SCHEMA = """
create table if not exists fact (name text primary key, value text not null);
create table if not exists cell (
  number integer primary key, class text not null, held_out integer not null, members blob not null);
create table if not exists generation (number integer primary key, cells text not null, began real not null);
create table if not exists layout (
  one integer primary key check (one = 0), key text not null, generation integer not null, cells blob not null);
create table if not exists spent (
  generation integer not null, kind text not null, question text not null, primary key (generation, kind, question));
create table if not exists answer (
  cells text not null, question text not null, digest text not null, body blob, primary key (cells, question));
"""


class LedgerError(Exception):
    """The ledger cannot be kept, so nothing may be answered; the message names the file."""


class Exhausted(Exception):
    """A generation of the data has answered as many different questions of a kind as its owner allows."""


@dataclass(frozen=True)
class Cell:
    """Samples of one class of which all are in an answer, or none.

    It has its number for good, and the identities of the samples; some are held out for evaluation.
    """

    number: int
    class_name: str
    held_out: bool
    members: tuple[bytes, ...]


@dataclass(frozen=True)
class Summary:
    """Summary of a ledger for its owner: its data, its age, the number of cells, and answers by kind.

    ``noise`` has the mu of every sum with noise, of all versions of the data.
    """

    data: str
    began: float
    cells: int
    spent: dict[str, int]
    noise: tuple[float, ...]


class LedgerFile:
    """A ledger at a path, made when it is first used; only its user can read it. Methods raise LedgerError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that no other process writes beside; all is written at the end, or nothing."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            with closing(sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None)) as connection:
                # Before anything is answered it must be on the disk.
                connection.execute("pragma synchronous = full")
                connection.execute("begin immediate")
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                yield connection
                connection.execute("commit")
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"{self.path}: {error}") from error

    def fact(self, name: str, value: str) -> str:
        """Return a fact as it was first told."""
        with self.transaction() as connection:
            connection.execute("insert or ignore into fact values (?, ?)", (name, value))
            (kept,) = connection.execute("select value from fact where name = ?", (name,)).fetchone()
        return str(kept)

    def among(self, prefix: str) -> dict[str, str]:
        """Return the facts of a prefix, by name."""
        with self.transaction() as connection:
            return dict(connection.execute("select name, value from fact where name glob ?", (f"{prefix}|*",)))

    def note_among(self, prefix: str, value: str, check: Callable[[list[str]], None]) -> None:
        """Note a value beside the others of a prefix, for good, unless ``check`` raises for all of them together."""
        with self.transaction() as connection:
            like = connection.execute("select value from fact where name glob ? order by name", (f"{prefix}|*",))
            values = [str(value) for (value,) in like]
            if value not in values:
                check([*values, value])
                connection.execute("insert into fact values (?, ?)", (f"{prefix}|{len(values)}", value))

    def spend(self, generation: int, kind: str, questions: Iterable[str], limit: int) -> None:
        """Note that questions are being answered; those that are known cost nothing.

        Raises
        ------
        Exhausted
            If they would be more than the limit; then none is noted.
        """
        with self.transaction() as connection:
            by_kind = connection.execute(
                "select question from spent where generation = ? and kind = ?", (generation, kind)
            ).fetchall()
            known = {question for (question,) in by_kind}
            new = set(questions) - known
            if len(known) + len(new) > limit:
                raise Exhausted(f"{len(known)} of {limit} {kind} are spent, {len(new)} more were asked for")
            rows = [(generation, kind, question) for question in sorted(new)]
            connection.executemany("insert into spent values (?, ?, ?)", rows)

    def answer(self, cells: str, question: str) -> tuple[str, bytes | None] | None:
        """Return the digest of what was answered, and the answer itself unless it was too long; None if nothing was."""
        with self.transaction() as connection:
            found = connection.execute(
                "select digest, body from answer where cells = ? and question = ?", (cells, question)
            ).fetchone()
        return None if found is None else (str(found[0]), found[1])

    def keep(self, cells: str, question: str, digest: str, body: bytes) -> tuple[str, bytes | None]:
        """Keep an answer unless there is one, and return :meth:`answer`."""
        kept = body if len(body) <= MAX_KEPT_BYTES else None
        with self.transaction() as connection:
            connection.execute("insert or ignore into answer values (?, ?, ?, ?)", (cells, question, digest, kept))
        return self.answer(cells, question) or (digest, kept)

    def reset(self) -> None:
        """Forget questions and answers; cells stay, so that differences from earlier answers are of whole cells."""
        with self.transaction() as connection:
            for table in ("spent", "answer"):
                connection.execute(f"delete from {table}")
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("vacuum")

    def summary(self) -> Summary:
        """Return what is in it."""
        with self.transaction() as connection:
            facts = dict(connection.execute("select name, value from fact").fetchall())
            (cells,) = connection.execute("select count(*) from cell").fetchone()
            newest = connection.execute("select number, began from generation order by number desc limit 1").fetchone()
            number, began = newest or (0, 0.0)
            spent = connection.execute(
                "select kind, count(*) from spent where generation = ? group by kind", (number,)
            ).fetchall()
        noise = tuple(float(json.loads(facts[name])[1]) for name in facts if name.startswith("dp-spent|"))
        return Summary(facts.get("data", "?"), began, cells, dict(spent), noise)


def cells_of(connection: sqlite3.Connection) -> list[Cell]:
    """Return all cells."""
    rows = connection.execute("select number, class, held_out, members from cell order by number")
    return [Cell(number, name, bool(held_out), _split(members)) for number, name, held_out, members in rows]


def add_cells(connection: sqlite3.Connection, class_name: str, cells: Iterable[tuple[bool, Sequence[bytes]]]) -> None:
    """Add cells of a class, each with whether it is held out and its members."""
    rows = [(class_name, held_out, b"".join(members)) for held_out, members in cells]
    connection.executemany("insert into cell (class, held_out, members) values (?, ?, ?)", rows)


def newest_generation(connection: sqlite3.Connection) -> tuple[int, set[int]] | None:
    """Return the number of the newest generation and the cells it began with, or None."""
    row = connection.execute("select number, cells from generation order by number desc limit 1").fetchone()
    return None if row is None else (int(row[0]), set(json.loads(row[1])))


def begin_generation(connection: sqlite3.Connection, cells: Iterable[int]) -> int:
    """Begin a generation of the data that has these cells, and return its number."""
    values = (json.dumps(sorted(cells)), time.time())
    return int(connection.execute("insert into generation (cells, began) values (?, ?)", values).lastrowid or 0)


def _split(members: bytes) -> tuple[bytes, ...]:
    return tuple(members[i : i + ID_BYTES] for i in range(0, len(members), ID_BYTES))
