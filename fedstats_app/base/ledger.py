"""The file in which a node remembers what it answered: SQLite, so that a crash leaves all of an answer or nothing.

It knows nothing of samples or messages: samples are keys, questions digests.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

PATTERN = "ledger-*.sqlite"
ID_BYTES = 16
_WAIT_SECONDS = 60.0
# Tables of version 0.1, which answered in cells and not in releases.
_OF_0_1 = ("cell", "generation", "layout", "spent", "answer")
_SCHEMA = """
create table if not exists fact (name text primary key, value text not null);
create table if not exists sample (key blob primary key, held_out integer not null, person blob not null);
create table if not exists layout (
  only integer primary key check (only = 0), files text not null, keys blob not null, places blob not null);
create table if not exists release (
  number integer primary key, question text not null unique, version text not null, chosen text not null,
  network text not null, made real not null, body blob not null);
create table if not exists spent (
  version text not null, kind text not null, question text not null, primary key (version, kind, question));
"""


class LedgerError(Exception):
    """The ledger cannot be kept, so nothing may be answered; the message names the file."""


class Exhausted(Exception):
    """A version of the data has answered as many different questions of a kind as its owner allows."""


@dataclass(frozen=True)
class Summary:
    """Summary of a ledger for its owner: its data, when releases were made, and answers by kind.

    ``noise`` has the mu of every sum with noise, of all versions of the data.
    """

    data: str
    releases: tuple[float, ...]
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
                if connection.execute("select 1 from sqlite_master where name = 'cell'").fetchone():
                    for table in _OF_0_1:  # facts stay: what noise was charged, and who signed
                        connection.execute(f"drop table if exists {table}")
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

    def spend(self, version: str, kind: str, questions: Iterable[str], limit: int) -> None:
        """Note that questions about a version of the data are being answered; those that are known cost nothing.

        Raises
        ------
        Exhausted
            If they would be more than the limit; then none is noted.
        """
        with self.transaction() as connection:
            same_kind = connection.execute(
                "select question from spent where version = ? and kind = ?", (version, kind)
            ).fetchall()
            known = {question for (question,) in same_kind}
            new = set(questions) - known
            if len(known) + len(new) > limit:
                raise Exhausted(f"{len(known)} of {limit} {kind} are spent, {len(new)} more were asked for")
            rows = [(version, kind, question) for question in sorted(new)]
            connection.executemany("insert into spent values (?, ?, ?)", rows)

    def reset(self) -> None:
        """Forget what was spent; releases stay, since what is subtracted from them does too."""
        with self.transaction() as connection:
            connection.execute("delete from spent")

    def summary(self) -> Summary:
        """Return what is in it."""
        with self.transaction() as connection:
            facts = dict(connection.execute("select name, value from fact").fetchall())
            made = [began for (began,) in connection.execute("select made from release order by number")]
            spent = connection.execute("select kind, count(*) from spent group by kind").fetchall()
        noise = tuple(float(json.loads(facts[name])[1]) for name in facts if name.startswith("dp-spent|"))
        return Summary(facts.get("data", "?"), tuple(made), dict(spent), noise)
