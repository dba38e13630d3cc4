"""The classes of a federation: nodes are aligned by name, and names that may mean one class are told apart or refused.

Other orders and classes that only some nodes have are fine. Two lists conflict where aligning them by name could make
two classes out of one, silently: names that differ only in letter case, spaces or Unicode form; and, where the nodes'
data itself numbers the classes, one number with two names neither of which the other side knows. What most nodes call
a class counts; a node whose list conflicts with theirs takes no part, and the reason shows both lists.
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

# Classes of one list that are shown in a reason.
CLASSES_SHOWN = 30


@dataclass(frozen=True)
class ClassList:
    """The classes of one node.

    Attributes
    ----------
    names : tuple of str
        Different names.
    ids : tuple of int or None
        The numbers that the node's data itself has for them; None where it has names only.
    """

    names: tuple[str, ...]
    ids: tuple[int, ...] | None = None

    def __str__(self) -> str:
        """Return the names, with their numbers if they have any, cut to a length that can be read."""
        shown = [f"{name!r}" if number is None else f"{number}: {name!r}" for number, name in self.entries]
        more = len(shown) - CLASSES_SHOWN
        return f"[{', '.join(shown[:CLASSES_SHOWN])}{f', and {more} more' if more > 0 else ''}]"

    @property
    def entries(self) -> list[tuple[int | None, str]]:
        """The classes as (number, name); the number is None where they have names only."""
        return list(zip(self.ids or [None] * len(self.names), self.names, strict=True))

    @property
    def is_of_numbers(self) -> bool:
        """Whether its names are nothing but numbers."""
        return bool(self.names) and all(name.isdecimal() for name in self.names)


def align_class_lists(
    lists: Mapping[int, ClassList], known: Sequence[str] = ()
) -> tuple[tuple[str, ...], dict[int, str]]:
    """Return the classes of the nodes that agree, and why the others take no part.

    A node that itself has two names that differ in letter case says that they are two classes ("a" and "A" of
    handwriting), and so they are for all.

    Parameters
    ----------
    lists : mapping
        From node to its classes. Who is refused depends on the lists, not on the ids of the nodes.
    known : sequence of str
        Classes that are there already, such as those of an earlier run; a node must agree with them.

    Returns
    -------
    class_names : tuple of str
        Sorted union over the nodes that take part, without ``known``.
    refused : dict
        From node to the reason, which shows both lists.
    """
    agreement = _Agreement(lists)
    if known:
        agreement.add(ClassList(tuple(known)), "the statistics to extend")
    refused = {}
    for node in agreement.order:
        reason = agreement.conflict(lists[node])
        if reason:
            refused[node] = f"{reason}: this one's classes are {lists[node]}"
        else:
            agreement.add(lists[node], f"node {node}")
    names = {name for node, one in lists.items() if node not in refused for name in one.names}
    return tuple(sorted(names)), dict(sorted(refused.items()))


class _Agreement:
    """What the nodes accepted so far say, and who of them said it first."""

    def __init__(self, lists: Mapping[int, ClassList]) -> None:
        self._case_matters = {folded for one in lists.values() for folded in _twice(_forms(one.names))}
        self._spellings: dict[str, dict[str, tuple[ClassList, str]]] = defaultdict(dict)
        self._names_of_number: dict[int, dict[str, tuple[ClassList, str]]] = defaultdict(dict)
        self._names: set[str] = set()
        self._lists: list[tuple[ClassList, str]] = []
        lost = self._votes_lost(lists)
        self.order = sorted(lists, key=lambda node: (lost[node], lists[node].names, lists[node].ids or (), node))

    def add(self, accepted: ClassList, who: str) -> None:
        """Take a list in."""
        self._lists.append((accepted, who))
        self._names.update(accepted.names)
        for number, name in accepted.entries:
            self._spellings[_form(name).casefold()].setdefault(name, (accepted, who))
            if number is not None:
                self._names_of_number[number].setdefault(name, (accepted, who))

    def conflict(self, one: ClassList) -> str:
        """Return why a list cannot be aligned by name, or ""."""
        looks: dict[str, str] = {}
        for name in one.names:
            if (other := looks.setdefault(_form(name), name)) != name:
                return f"its classes {other!a} and {name!a} differ only in spaces or Unicode form"
        for name in one.names:
            for other, (theirs, who) in self._spellings.get(_form(name).casefold(), {}).items():
                if other != name and _form(other) == _form(name):
                    return f"class {name!a} differs from {other!a} only in spaces or Unicode form; {who} has {theirs}"
                if other != name and _form(name).casefold() not in self._case_matters:
                    return f"class {name!r} differs from {other!r} only in letter case; {who} has {theirs}"
        return self._conflict_of_numbers(one)

    def _conflict_of_numbers(self, one: ClassList) -> str:
        own = set(one.names)
        for number, name in one.entries if one.ids is not None else ():
            for other, (theirs, who) in self._names_of_number.get(number or 0, {}).items():
                if name not in self._names and other not in own:
                    return f"class {number} is {name!r}, but elsewhere {other!r}; {who} has {theirs}"
        if own and own.isdisjoint(self._names):
            for theirs, who in self._lists:
                numbers = one if one.is_of_numbers else theirs
                if theirs.names and one.is_of_numbers != theirs.is_of_numbers and numbers.ids is not None:
                    return f"classes that are only numbers cannot be aligned with names; {who} has {theirs}"
        return ""

    def _votes_lost(self, lists: Mapping[int, ClassList]) -> dict[int, int]:
        """Return for each node how many of its classes most of the others call something else."""
        spellings: dict[str, Counter[str]] = defaultdict(Counter)
        numbers: dict[int, Counter[str]] = defaultdict(Counter)
        for one in lists.values():
            for number, name in one.entries:
                spellings[_form(name).casefold()][name] += 1
                if number is not None:
                    numbers[number][name] += 1
        kinds = Counter(one.is_of_numbers for one in lists.values() if one.names)
        return {
            node: (kinds[one.is_of_numbers] < kinds[not one.is_of_numbers])
            + sum(
                _outvoted(name, spellings[_form(name).casefold()])
                or (number is not None and _outvoted(name, numbers[number]))
                for number, name in one.entries
            )
            for node, one in lists.items()
        }


def _outvoted(name: str, votes: Counter[str]) -> bool:
    return votes[name] < max(votes.values())


@functools.lru_cache(maxsize=200_000)
def _form(name: str) -> str:
    """Return what a person sees of a name: compatible characters made one, and single spaces inside only."""
    return " ".join(unicodedata.normalize("NFKC", name).split())


def _forms(names: Sequence[str]) -> list[str]:
    return [form.casefold() for form in {_form(name) for name in names}]


def _twice(values: Collection[str]) -> list[str]:
    return [value for value, count in Counter(values).items() if count > 1]
