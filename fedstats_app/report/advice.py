"""Which method to take: the cheapest that the test set cannot tell from the best, and then with less to send."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fedstats_app.methods import display_name
from fedstats_app.report.method_result import wilson_interval
from fedstats_app.report.text_columns import bytes_with_unit


class Scored(Protocol):
    """What is asked of a result; :class:`fedstats_app.report.method_result.MethodResult` has it."""

    @property
    def method(self) -> str:
        """The method's name."""

    @property
    def accuracy(self) -> float | None:
        """Share of test samples classified correctly, 0 to 1; None where nothing was evaluated."""

    @property
    def wire_bytes(self) -> int:
        """Bytes from all clients as sent."""


@dataclass(frozen=True)
class Candidate:
    """One method's accuracy and price.

    Attributes
    ----------
    method : str
        Its name.
    accuracy : float
        0 to 1.
    wire_bytes : int
        From all clients as sent.
    """

    method: str
    accuracy: float
    wire_bytes: int

    def to_json(self) -> dict[str, object]:
        """Return the entry for results.json."""
        return {"method": self.method, "accuracy": self.accuracy, "wire_bytes": self.wire_bytes}


@dataclass(frozen=True)
class Step:
    """What to take with at least ``choice.wire_bytes`` to send, and less than the next step's.

    Attributes
    ----------
    choice : Candidate
        The cheapest method within the interval of the best; of equally cheap ones the more accurate.
    best : Candidate
        The most accurate method that sends less than the next step's; of equally accurate ones the cheaper.
    low, high : float
        Ends of the best one's 95% Wilson interval, 0 to 1.
    """

    choice: Candidate
    best: Candidate
    low: float
    high: float

    def to_json(self) -> dict[str, object]:
        """Return the entry for results.json."""
        return {**self.choice.to_json(), "best": self.best.to_json(), "interval": [self.low, self.high]}


@dataclass(frozen=True)
class Advice:
    """Which method to take at which budget.

    Attributes
    ----------
    steps : tuple of Step
        By rising bytes and rising accuracy, at least one; the last has no limit of bytes. Every choice lies below the
        interval of the next step's best.
    num_test : int
        Test samples that all methods were scored on.
    indistinct : bool
        Whether all methods lie within the interval of the best.
    at_chance : bool
        Whether that interval reaches down to what always naming the most frequent class scores.
    """

    steps: tuple[Step, ...]
    num_test: int
    indistinct: bool
    at_chance: bool

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
            "steps": [step.to_json() for step in self.steps],
        }


def advise(results: Iterable[Scored], num_test: int, *, chance: float = 0.0) -> Advice | None:
    """Choose the cheapest method within the interval of the best, then the same among those that send less, and so on.

    The interval is Wilson's (1927), of the best method's accuracy at 95%.

    Parameters
    ----------
    results : iterable of Scored
        Of different methods, all scored on the same samples.
    num_test : int
        How many samples these are.
    chance : float
        Accuracy of always naming the most frequent class, 0 to 1; 0 where it is not known.

    Returns
    -------
    Advice or None
        None where there is nothing to choose between: fewer than two methods with an accuracy, or no test samples.
    """
    candidates = [Candidate(one.method, one.accuracy, one.wire_bytes) for one in results if one.accuracy is not None]
    if len(candidates) < 2 or num_test < 1:
        return None
    steps, left = [], candidates
    while left:
        steps.append(_step(left, num_test))
        left = [one for one in left if one.wire_bytes < steps[-1].choice.wire_bytes]
    low = steps[0].low
    return Advice(tuple(reversed(steps)), num_test, all(one.accuracy >= low for one in candidates), low <= chance)


def _step(candidates: list[Candidate], num_test: int) -> Step:
    best = min(candidates, key=lambda one: (-one.accuracy, one.wire_bytes))
    low, high = wilson_interval(round(best.accuracy * num_test), num_test)
    within = (one for one in candidates if one.accuracy >= low)
    return Step(min(within, key=lambda one: (one.wire_bytes, -one.accuracy)), best, low, high)


def advice_lines(advice: Advice | None) -> list[str]:
    """Return sentences, one per line: what to take, what the noise is, what to take with less to send.

    Bytes are those of all clients as sent.

    Parameters
    ----------
    advice : Advice
        From :func:`fedstats_app.report.advice.advise`; None gives no line.
    """
    if advice is None:
        return []
    samples, last = f"{advice.num_test:,} test samples", advice.steps[-1]
    if advice.at_chance:
        return [f"No method is better than naming the most frequent class, as far as {samples} can tell."]
    if advice.indistinct:
        return [
            f"The {samples} cannot tell the methods apart: all lie within the 95% interval of {_name(last.best)}, "
            f"{_interval(last)}.",
            f"Take {_priced(last.choice)}; no method sends less.",
        ]
    lines = [
        f"Take {_priced(last.choice)}, {_reason(last)}.",
        f"Noise is the 95% interval of {_name(last.best)} on {samples}, {_interval(last)}.",
    ]
    for step, dearer in zip(advice.steps[-2::-1], advice.steps[:0:-1], strict=True):
        points = 100 * (dearer.choice.accuracy - step.choice.accuracy)
        share = _share(step.choice, dearer.choice, "the")
        lines.append(f"With less to send, {_priced(step.choice)}, {points:.2f} points less{share}.")
    return lines


def _reason(step: Step) -> str:
    """Tell why the choice is taken rather than the most accurate method or a cheaper one."""
    if step.choice == step.best:
        return "the most accurate; no cheaper method is within its noise"
    best = f"{_name(step.best)} ({_numbers(step.best)})"
    return f"within the noise of {best}{_share(step.choice, step.best, 'its')}"


def _share(cheap: Candidate, dear: Candidate, whose: str) -> str:
    """Tell the share of the bytes: a fraction where it is close to one over a whole number, else per cent."""
    if not 0 < cheap.wire_bytes < dear.wire_bytes:
        return ""
    ratio = dear.wire_bytes / cheap.wire_bytes
    is_fraction = ratio > 1.5 and abs(ratio / round(ratio) - 1) < 0.05
    share = f"1/{round(ratio):,}" if is_fraction else f"{100 / ratio:.0f} %"
    return f" at {share} of {whose} bytes"


def _priced(one: Candidate) -> str:
    return f"{_name(one)}: {_numbers(one)}"


def _numbers(one: Candidate) -> str:
    return f"{100 * one.accuracy:.2f} % for {bytes_with_unit(one.wire_bytes)}"


def _interval(step: Step) -> str:
    return f"{100 * step.low:.1f} to {100 * step.high:.1f} %"


def _name(one: Candidate) -> str:
    return display_name(one.method)
