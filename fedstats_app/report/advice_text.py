"""Which method to take, in words: below the table, in results.json and in the model card."""

from __future__ import annotations

from fedstats_app.methods import display_name
from fedstats_app.report.advice import Advice, Candidate, Step
from fedstats_app.report.text_columns import bytes_with_unit


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
