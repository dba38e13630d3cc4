"""The classes of a federation: nodes are aligned by name, and names that may mean one class are told apart or refused.

Other orders and classes that only some nodes have are fine. Two lists conflict where aligning them by name could make
two classes out of one, silently: names that differ only in letter case, spaces, Unicode form (NFKC), the script of
digits or letters that are not visible; and, where the nodes' data itself numbers the classes, one number with two names
neither of which the other side knows. The name that more nodes have counts, or of names and numbers those of the node
that conflicts with fewer others; who has another takes no part, and the reason shows both lists. In a tie both take
part, with two classes: else one node could shut another out. Classes that look alike are named in any case.
"""

from __future__ import annotations

import functools
import logging
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedstats_app.grid.asking import first_reasons

# Classes of one list that are shown in a reason.
CLASSES_SHOWN = 30
UNSEEN = "spaces, Unicode form or what nobody sees"
# Printable, and drawn as nothing: fillers of Hangul, the blank of Braille, joiners and selectors of variants.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
# Cyrillic and Greek letters that look like Latin ones.
_LATIN = str.maketrans(
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0406\u0408\u0405"
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u04bb\u0501\u051b\u051d\u04cf"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf\u03bd\u03b9\u03ba\u03c1\u03c5\u03c7\u03b1",
    "ABEKMHOPCTYXIJSaeopcyxijshdqwlABEZHIKMNOPTYXovikpuxa",
)

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
        return bool(self.names) and all(_form(name).isdecimal() for name in self.names)


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
        against = agreement.against[node]
        if reason := agreement.conflict(lists[node], against):
            refused[node] = f"{reason}: this one's classes are {lists[node]}"
        else:
            agreement.add(lists[node], f"node {node}", against)
    names = {name for node, class_list in lists.items() if node not in refused for name in class_list.names}
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        alike[_key(_form(name).translate(_LATIN))].append(ascii(name))
    if pairs := [" and ".join(group) for group in alike.values() if len(group) > 1] + agreement.ties:
        logger.warning("classes that may be the same, and count as different: %s", first_reasons(pairs))
    return tuple(sorted(names)), dict(sorted(refused.items()))


# A list, the node that has it, and with how many others it conflicts; -1 where it counts in any case.
_Held = tuple[ClassList, str, int]


class _Agreement:
    """Class names of the nodes accepted so far, and the node that first named each."""

    def __init__(self, lists: Mapping[int, ClassList], max_classes: int | None) -> None:
        self._max_classes = max_classes
        # What a list tells apart by letter case is told apart everywhere.
        looks = [Counter(map(_key, {_form(name) for name in class_list.names})) for class_list in lists.values()]
        self._case_matters = {key for keys in looks for key, count in keys.items() if count > 1}
        self._spellings: dict[str, dict[str, _Held]] = defaultdict(dict)
        self._names_of_number: dict[int, dict[str, _Held]] = defaultdict(dict)
        self._names: set[str] = set()
        self._lists: list[_Held] = []
        self.ties: list[str] = []
        self.against = self._num_conflicting(lists)
        self._holders = Counter(name for class_list in lists.values() for name in class_list.names)
        alone = {node: sum(self._holders[name] == 1 for name in class_list.names) for node, class_list in lists.items()}
        self.order = sorted(
            lists, key=lambda node: (self.against[node], alone[node], lists[node].names, lists[node].ids or (), node)
        )

    def add(self, accepted: ClassList, holder: str, against: int = -1) -> None:
        """Take in a list that conflicts with a number of others."""
        held = (accepted, holder, against)
        self._lists.append(held)
        self._names.update(accepted.names)
        for number, name in accepted.entries:
            self._spellings[_key(name)].setdefault(name, held)
            if number is not None:
                self._names_of_number[number].setdefault(name, held)

    def conflict(self, class_list: ClassList, against: int) -> str:
        """Return why a list that conflicts with a number of others cannot be aligned by name, or ""."""
        looks: dict[str, str] = {}
        for name in class_list.names:
            if not _form(name):
                return f"its class {name!a} has no letter that can be seen"
            if (other := looks.setdefault(_form(name), name)) != name:
                return f"its classes {other!a} and {name!a} differ only in {UNSEEN}"
        for name in class_list.names:
            for other, (theirs, holder, fewer) in self._spellings.get(_key(name), {}).items():
                if other == name or (fewer >= 0 and self._holders[other] <= self._holders[name]):
                    continue
                if _form(other) == _form(name):
                    return f"class {name!a} differs from {other!a} only in {UNSEEN}; {holder} has {theirs}"
                if _key(name) not in self._case_matters:
                    return f"class {name!r} differs from {other!r} only in letter case; {holder} has {theirs}"
        if self._max_classes is not None and len(self._names.union(class_list.names)) > self._max_classes:
            return f"with its classes there would be more than {self._max_classes} classes (max-classes)"
        own = set(class_list.names)
        for number, name in class_list.entries if class_list.ids is not None else ():
            for other, (theirs, holder, fewer) in self._names_of_number.get(number or 0, {}).items():
                if name in self._names or other in own:
                    continue
                if fewer < against:
                    return f"class {number} is {name!r}, but elsewhere {other!r}; {holder} has {theirs}"
                self.ties.append(f"{name!a} and {other!a}, both number {number}")
        if own and own.isdisjoint(self._names):
            for theirs, holder, fewer in self._lists:
                numbers = class_list if class_list.is_of_numbers else theirs
                of_other_kind = theirs.names and class_list.is_of_numbers != theirs.is_of_numbers
                if of_other_kind and numbers.ids is not None and fewer < against:
                    return f"classes that are only numbers cannot be aligned with names; {holder} has {theirs}"
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
    """Reduce a name to what a person sees: compatible characters and digits of any script made one, single spaces."""
    letters = "".join(letter for letter in unicodedata.normalize("NFKC", name) if not _INVISIBLE.match(letter))
    return " ".join("".join(str(unicodedata.decimal(letter, letter)) for letter in letters).split())


@functools.lru_cache(maxsize=200_000)
def _key(name: str) -> str:
    """Reduce a name to what those of one class have in common, also in another letter case."""
    return _form(name).casefold()
