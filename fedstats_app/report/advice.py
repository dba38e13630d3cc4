"""Which method to take: the most accurate, unless the test cannot tell it from a cheaper or more private one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedstats_app.heads.paired import flip_test, sign_test
from fedstats_app.methods import display_name
from fedstats_app.report.text_columns import bytes_with_unit

# Two methods differ if a test with Holm's correction says so at this level.
LEVEL = 0.05
# Up to so many bytes a client, what is sent does not matter beside what it tells of single samples.
FEW_BYTES = 10_000_000
# What clients send, by how much it tells of single samples: class means, directions of the scatter, a Gram matrix.
Sends = Literal["means", "directions", "gram"]
_TELLS: Mapping[Sends, int] = {"means": 0, "directions": 1, "gram": 2}


@dataclass(frozen=True)
class Candidate:
    """One method's accuracy, 0 to 1, and price: bytes from all clients as sent, and what each client sends."""

    method: str
    accuracy: float
    wire_bytes: int
    sends: Sends = "means"

    def to_json(self) -> dict[str, object]:
        """Return the entry for results.json."""
        return {"method": self.method, "accuracy": self.accuracy, "wire_bytes": self.wire_bytes}


@dataclass(frozen=True)
class Step:
    """What to take with at least ``choice.wire_bytes`` to send, and less than the next step's.

    Attributes
    ----------
    choice : Candidate
        Of the methods that the test samples cannot tell from the best, the one that tells least of single samples, or
        where bytes matter the cheapest.
    best : Candidate
        The most accurate method that sends less than the next step's; of equally accurate ones the cheaper.
    chance : float
        Probability of at least such a difference between the two, if neither were better, corrected for the number of
        methods; 1 where they are the same.
    """

    choice: Candidate
    best: Candidate
    chance: float

    def to_json(self) -> dict[str, object]:
        """Return the entry for results.json."""
        return {**self.choice.to_json(), "best": self.best.to_json(), "p_value": self.chance}


@dataclass(frozen=True)
class Advice:
    """Which method to take at which budget.

    Attributes
    ----------
    steps : tuple of Step
        By rising bytes and rising accuracy, at least one; the last has no limit of bytes. The test samples tell every
        choice from the next step's best.
    num_test : int
        Test samples that all methods were scored on.
    indistinct : bool
        Whether the test samples tell no method from the best.
    at_chance : bool
        Whether they cannot tell the best from always naming the most frequent class.
    few_bytes : bool
        Whether what any client sends is so little that it does not matter.
    """

    steps: tuple[Step, ...]
    num_test: int
    indistinct: bool
    at_chance: bool
    few_bytes: bool

    @property
    def choice(self) -> Candidate:
        """What to take without a limit of bytes."""
        return self.steps[-1].choice

    @property
    def best(self) -> Candidate:
        """The most accurate method."""
        return self.steps[-1].best

    def to_json(self) -> dict[str, object]:
        """Return the entry for results.json."""
        return {
            "method": self.choice.method,
            "num_test_examples": self.num_test,
            "indistinct": self.indistinct,
            "at_chance": self.at_chance,
            "few_bytes": self.few_bytes,
            "steps": [step.to_json() for step in self.steps],
        }


@dataclass(frozen=True)
class Comparisons:
    """How methods did on the same test samples, pair by pair.

    Parameters
    ----------
    num_test : int
        How many samples these are.
    right : mapping
        By method, (n,) integers or booleans: how many samples it classifies correctly in each of n cells, which are
        alike for all methods. A cell is one sample, or what a client kept of one class. Of a method that is not there
        every test assumes that it agrees with the other as little as their accuracies allow, so that a difference is
        never claimed that pairs would not show.
    """

    num_test: int
    right: Mapping[str, Tensor]

    def chance(self, one: Candidate, other: Candidate) -> float:
        """Probability of at least the difference between two methods if neither were better in any cell.

        Of single samples that is McNemar's exact test, of cells of several the sign-flip test
        (:func:`fedstats_app.heads.paired.flip_test`), which takes cells to be independent.
        """
        if one.method in self.right and other.method in self.right:
            first, second = self.right[one.method], self.right[other.method]
            return flip_test(first.to(torch.int64) - second.to(torch.int64))
        a, b = round(one.accuracy * self.num_test), round(other.accuracy * self.num_test)
        both = max(a + b - self.num_test, 0)
        return min(1.0, 2 * sign_test(max(a, b) - both, min(a, b) - both))


def advise(
    candidates: Sequence[Candidate], compared: Comparisons, num_clients: int, *, chance: float = 0.0
) -> Advice | None:
    """Choose among the methods that the test samples cannot tell from the best, then among those that send less.

    Every method is compared with the best one by an exact paired test (:meth:`Comparisons.chance`), with Holm's
    correction (1979) over the methods. Of those that do not differ the one is taken that tells least of single samples
    if clients send few bytes, else the one that sends least.

    Parameters
    ----------
    candidates : sequence of Candidate
        Of different methods.
    compared : Comparisons
        How they did on the same samples.
    num_clients : int
        Who sent something, at least 1.
    chance : float
        Accuracy of always naming the most frequent class, 0 to 1; 0 where it is not known.

    Returns
    -------
    Advice or None
        None where there is nothing to choose between: fewer than two methods, or no test samples.
    """
    if len(candidates) < 2 or compared.num_test < 1:
        return None
    few = max(one.wire_bytes for one in candidates) <= FEW_BYTES * num_clients
    step, equal = _step(candidates, compared, few)
    steps, left, indistinct = [step], list(candidates), len(equal) == len(candidates)
    while left := [one for one in left if one not in equal and one.wire_bytes < step.choice.wire_bytes]:
        step, equal = _step(left, compared, few)
        steps.append(step)
    best, most_frequent = steps[0].best, Candidate("", chance, 0)
    at_chance = best.accuracy <= chance or compared.chance(best, most_frequent) >= LEVEL
    return Advice(tuple(reversed(steps)), compared.num_test, indistinct, at_chance, few)


def _step(candidates: Sequence[Candidate], compared: Comparisons, few: bool) -> tuple[Step, list[Candidate]]:
    """Choose among candidates; also return those that the samples cannot tell from the best, the best among them."""
    best = min(candidates, key=lambda one: (-one.accuracy, one.wire_bytes))
    chances = {one.method: compared.chance(best, one) for one in candidates if one != best}
    # Holm's correction: the smallest of n counts n times, the next n - 1 times, and none is below one before it.
    least = 0.0
    for place, name in enumerate(sorted(chances, key=chances.__getitem__)):
        least = chances[name] = max(least, min(1.0, chances[name] * (len(chances) - place)))
    equal = [one for one in candidates if chances.get(one.method, 1.0) >= LEVEL]
    choice = min(equal, key=lambda one: (_TELLS[one.sends] if few else one.wire_bytes, -one.accuracy, one.wire_bytes))
    return Step(choice, best, chances.get(choice.method, 1.0)), equal


def advice_lines(advice: Advice | None) -> list[str]:
    """Say what to take, what the test samples can tell, and what to take with less to send: sentences, one per line.

    Bytes are those of all clients as sent.
    """
    if advice is None:
        return []
    samples, choice, best = f"{advice.num_test:,} test samples", advice.choice, advice.best
    if advice.at_chance:
        return [f"No method is better than naming the most frequent class, as far as {samples} can tell."]
    if choice == best:
        why = f"the {samples} cannot tell any other from it" if advice.indistinct else "the most accurate"
        lines = [f"Take {_priced(choice)}: {why}."]
    else:
        lines = [
            f"Take {_priced(choice)}. The {samples} cannot tell it from "
            f"{display_name(best.method)} ({_numbers(best)}): p = {advice.steps[-1].chance:.2g} (exact paired test, "
            "Holm's correction)."
        ]
        lines += _why_not(choice, best, advice.few_bytes)
    for step, dearer in zip(advice.steps[-2::-1], advice.steps[:0:-1], strict=True):
        points = 100 * (dearer.choice.accuracy - step.choice.accuracy)
        at = f" at {share}" if (share := _share(step.choice, dearer.choice)) else ""
        lines.append(f"With less to send, {_priced(step.choice)}, {points:.2f} points less{at}.")
    return lines


def _why_not(choice: Candidate, best: Candidate, few_bytes: bool) -> list[str]:
    """Say what speaks for the choice: fewer bytes, and what the best one's statistics tell beyond its own."""
    lines = []
    if share := _share(choice, best):
        lines.append(f"It sends {share}.")
    if _TELLS[best.sends] > _TELLS[choice.sends]:
        more = {"gram": "A Gram matrix", "directions": "The directions of a scatter", "means": ""}[best.sends]
        than = "class means do" if choice.sends == "means" else "a few directions do"
        lines.append(f"{more} can reveal more about single samples than {than}.")
    return [" ".join(lines)] if lines else []


def _share(cheap: Candidate, dear: Candidate) -> str:
    """Tell the share of the bytes: a fraction where it is close to one over a whole number, else per cent."""
    if not 0 < cheap.wire_bytes < dear.wire_bytes:
        return ""
    ratio = dear.wire_bytes / cheap.wire_bytes
    is_fraction = ratio > 1.5 and abs(ratio / round(ratio) - 1) < 0.05
    share = f"1/{round(ratio):,}" if is_fraction else f"{100 / ratio:.0f} %"
    return f"{share} of the bytes"


def _priced(one: Candidate) -> str:
    return f"{display_name(one.method)}: {_numbers(one)}"


def _numbers(one: Candidate) -> str:
    return f"{100 * one.accuracy:.2f} % for {bytes_with_unit(one.wire_bytes)}"
