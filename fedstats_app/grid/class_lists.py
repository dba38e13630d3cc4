"""The classes of a federation: nodes are aligned by name, and names that may mean one class are told apart or refused.

Other orders and classes that only some nodes have are fine. Two lists conflict where aligning them by name could make
two classes out of one, silently: names that differ only in letter case, spaces or Unicode form (NFKC); and, where the
nodes' data itself numbers the classes, one number with two names neither of which the other side knows. Of two nodes
that conflict the one counts that conflicts with fewer others; the other takes no part, and the reason shows both lists.
"""

from __future__ import annotations

import functools
import logging
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Classes of one list that are shown in a reason.
CLASSES_SHOWN = 30

logger = logging.getLogger("fedstats_app")


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
        """Show the names, with their numbers if they have any, cut to a length that can be read."""
        shown = [f"{name!r}" if number is None else f"{number}: {name!r}" for number, name in self.entries]
        more = len(shown) - CLASSES_SHOWN
        return f"[{', '.join(shown[:CLASSES_SHOWN])}{f', and {more} more' if more > 0 else ''}]"

    @property
    def entries(self) -> list[tuple[int | None, str]]:
        """The classes as (number, name); the number is None where they have names only."""
        return list(zip(self.ids or [None] * len(self.names), self.names, strict=True))

    @property
    def is_of_numbers(self) -> bool:
        """True if all names are numbers."""
        return bool(self.names) and all(name.isdecimal() for name in self.names)


def align_class_lists(
    lists: Mapping[int, ClassList], known: Sequence[str] = (), *, max_classes: int | None = None
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
    max_classes : int, optional
        Of all together. A node with more takes no part, nor do those, of nodes that do not conflict those last who have
        most classes to themselves, with whom there would be more.

    Returns
    -------
    class_names : tuple of str
        Sorted union over the nodes that take part, without ``known``.
    refused : dict
        From node to the reason, which shows both lists.
    """
    too_many = {
        node: f"it names {len(class_list.names)} classes, at most {max_classes} are allowed (max-classes)"
        for node, class_list in lists.items()
        if max_classes is not None and len(class_list.names) > max_classes
    }
    lists = {node: class_list for node, class_list in lists.items() if node not in too_many}
    agreement = _Agreement(lists, max_classes)
    if known:
        agreement.add(ClassList(tuple(known)), "the statistics to extend")
    refused = dict(too_many)
    for node in agreement.order:
        reason = agreement.conflict(lists[node])
        if reason:
            refused[node] = f"{reason}: this one's classes are {lists[node]}"
        else:
            agreement.add(lists[node], f"node {node}")
    names = {name for node, class_list in lists.items() if node not in refused for name in class_list.names}
    for name in sorted(names):
        if len(_alphabets(name)) > 1:
            logger.warning("class %a has letters of several alphabets: %s", name, ", ".join(sorted(_alphabets(name))))
    return tuple(sorted(names)), dict(sorted(refused.items()))


class _Agreement:
    """Class names of the nodes accepted so far, and the node that first named each."""

    def __init__(self, lists: Mapping[int, ClassList], max_classes: int | None) -> None:
        self._max_classes = max_classes
        self._case_matters = set().union(*(_twice(class_list.names) for class_list in lists.values()))
        self._spellings: dict[str, dict[str, tuple[ClassList, str]]] = defaultdict(dict)
        self._names_of_number: dict[int, dict[str, tuple[ClassList, str]]] = defaultdict(dict)
        self._names: set[str] = set()
        self._lists: list[tuple[ClassList, str]] = []
        against = self._num_conflicting(lists)
        holders = Counter(name for class_list in lists.values() for name in class_list.names)
        alone = {node: sum(holders[name] == 1 for name in class_list.names) for node, class_list in lists.items()}
        self.order = sorted(
            lists, key=lambda node: (against[node], alone[node], lists[node].names, lists[node].ids or (), node)
        )

    def add(self, accepted: ClassList, who: str) -> None:
        """Take a list in."""
        self._lists.append((accepted, who))
        self._names.update(accepted.names)
        for number, name in accepted.entries:
            self._spellings[_key(name)].setdefault(name, (accepted, who))
            if number is not None:
                self._names_of_number[number].setdefault(name, (accepted, who))

    def conflict(self, class_list: ClassList) -> str:
        """Return why a list cannot be aligned by name, or ""."""
        looks: dict[str, str] = {}
        for name in class_list.names:
            if (other := looks.setdefault(_form(name), name)) != name:
                return f"its classes {other!a} and {name!a} differ only in spaces or Unicode form"
        for name in class_list.names:
            for other, (theirs, who) in self._spellings.get(_key(name), {}).items():
                if other != name and _form(other) == _form(name):
                    return f"class {name!a} differs from {other!a} only in spaces or Unicode form; {who} has {theirs}"
                if other != name and _key(name) not in self._case_matters:
                    return f"class {name!r} differs from {other!r} only in letter case; {who} has {theirs}"
        if self._max_classes is not None and len(self._names.union(class_list.names)) > self._max_classes:
            return f"with its classes there would be more than {self._max_classes} classes (max-classes)"
        return self._conflict_of_numbers(class_list)

    def _conflict_of_numbers(self, class_list: ClassList) -> str:
        own = set(class_list.names)
        for number, name in class_list.entries if class_list.ids is not None else ():
            for other, (theirs, who) in self._names_of_number.get(number or 0, {}).items():
                if name not in self._names and other not in own:
                    return f"class {number} is {name!r}, but elsewhere {other!r}; {who} has {theirs}"
        if own and own.isdisjoint(self._names):
            for theirs, who in self._lists:
                numbers = class_list if class_list.is_of_numbers else theirs
                if theirs.names and class_list.is_of_numbers != theirs.is_of_numbers and numbers.ids is not None:
                    return f"classes that are only numbers cannot be aligned with names; {who} has {theirs}"
        return ""

    def _num_conflicting(self, lists: Mapping[int, ClassList]) -> dict[int, int]:
        """Return for each node with how many others it conflicts; one if only in that its names are numbers."""
        spellings: dict[str | int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for node, class_list in lists.items():
            for number, name in class_list.entries:
                spellings[_key(name)][name].add(node)
                if number is not None:
                    spellings[number][name].add(node)
        kinds = Counter(class_list.is_of_numbers for class_list in lists.values() if class_list.names)
        against: dict[int, set[int]] = {node: set() for node in lists}
        for key, by_name in spellings.items():
            for name in by_name if len(by_name) > 1 and key not in self._case_matters else ():
                others = set().union(*(nodes for other, nodes in by_name.items() if other != name))
                for node in by_name[name]:
                    against[node] |= others
        return {
            node: len(against[node] - {node}) + (kinds[class_list.is_of_numbers] < kinds[not class_list.is_of_numbers])
            for node, class_list in lists.items()
        }


@functools.lru_cache(maxsize=200_000)
def _form(name: str) -> str:
    """Reduce a name to what a person sees: compatible characters made one, and single spaces inside only."""
    return " ".join(unicodedata.normalize("NFKC", name).split())


@functools.lru_cache(maxsize=200_000)
def _key(name: str) -> str:
    """Reduce a name to what those of one class have in common, also in another letter case."""
    return _form(name).casefold()


def _alphabets(name: str) -> set[str]:
    """Return the alphabets of a name among those whose letters look alike."""
    return {unicodedata.name(letter, "").split(" ")[0] for letter in name} & {"LATIN", "CYRILLIC", "GREEK"}


def _twice(names: Sequence[str]) -> set[str]:
    """Find what several names of one list have in common that a person tells apart."""
    keys = Counter(_key(form) for form in {_form(name) for name in names})
    return {key for key, count in keys.items() if count > 1}
