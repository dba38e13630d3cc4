"""Sets of parties whose sum is known: differences and any other combination of such sums must be over enough.

A set is JSON: class names, and from each party's identity to those of its classes that are in the sum. Sites compare
all sets in which the data of any party of a run ever were: each party names its own in the plan by their SHA-256, so
that a server can leave none out.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from fedstats_app.secure.plan import IDENTITY_BYTES, Plan


def set_of(plan: Plan, names: Sequence[str], active: Sequence[int], survivors: Sequence[int]) -> bytes:
    """Write the set of a sum: its survivors, each with its classes that the sum over the active parties has."""
    summed = plan.classes(active)
    parties = {
        plan.parties[party].identity.hex(): np.flatnonzero(plan.lists[party].astype(bool) & summed).tolist()
        for party in survivors
    }
    return json.dumps({"classes": list(names), "parties": parties}, sort_keys=True).encode()


def digest_of_set(content: bytes) -> bytes:
    """Return by what the plan names a set: its SHA-256."""
    return hashlib.sha256(content).digest()


def check_set(content: bytes) -> None:
    """Refuse what no :func:`set_of` wrote.

    Raises
    ------
    ValueError
        In this case.
    """
    try:
        found = json.loads(content)
        names, parties = found["classes"], found["parties"]
        fits = all(isinstance(name, str) for name in names) and all(
            len(bytes.fromhex(party)) == IDENTITY_BYTES and all(0 <= int(own) < len(names) for own in classes)
            for party, classes in parties.items()
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        fits = False
    if not fits:
        raise ValueError("a set of parties must be JSON of classes and parties")


def classes_of_few(new: bytes, earlier: Iterable[bytes], least: int) -> list[str]:
    """Name the classes of which the new sum, with earlier ones, would tell a sum over fewer parties than ``least``.

    Sums over some sets, added and subtracted in any way, count all members of a cell alike: of those that are in the
    same sets. Comparing pairs of sets is not enough: of A, A and B, A and C, and A, B, C and x, each two differ by
    many, and all four together give x. Cells that earlier sums made count no more.
    """
    known = list(dict.fromkeys(earlier))
    if new in known:
        return []
    before, after = _cells(known), _cells([*known, new])
    return sorted(
        name
        for name, cells in after.items()
        if any(len(cell) < least and cell not in before.get(name, ()) for cell in cells)
    )


def _cells(sets: Sequence[bytes]) -> dict[str, set[frozenset[str]]]:
    """Return the cells of each class by its name."""
    members: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, content in enumerate(map(json.loads, sets)):
        for party, classes in content["parties"].items():
            for number in classes:
                members[content["classes"][number]][party].append(place)
    found: dict[str, set[frozenset[str]]] = {}
    for name, places in members.items():
        cells: defaultdict[tuple[int, ...], set[str]] = defaultdict(set)
        for party, own in places.items():
            cells[tuple(own)].add(party)
        found[name] = {frozenset(cell) for cell in cells.values()}
    return found
