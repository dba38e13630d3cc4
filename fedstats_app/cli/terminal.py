"""Output of commands in a terminal: names that come from files, tables, paragraphs, and progress on stderr."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

from fedstats_app.base.progress import Progress, Step
from fedstats_app.report.text_columns import aligned

WIDTH = 100

Item = TypeVar("Item")


def printable(text: str, width: int = WIDTH) -> str:
    """Clean text so that it cannot steer a terminal, its beginning cut off if it is too long.

    The end is kept because the end of a path tells files apart.
    """
    clean = "".join(character if character.isprintable() else "?" for character in text)
    return clean if len(clean) <= width else "..." + clean[len(clean) - width + 3 :]


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Lay out rows under a heading; the first `left` columns are aligned left, the others right."""
    return "\n".join(aligned([heading, *rows], range(left)))


def paragraph(text: str, *, first: str = "", rest: str = "") -> str:
    """Wrap text to the width, behind `first` and, from the second line on, `rest`."""
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


@contextmanager
def told(command: str) -> Iterator[Progress]:
    """Say now and then how far a command is while this is open; what is over in a few seconds says nothing."""
    progress = Progress(lambda line: print(f"fedstats {command}: {line}\n", end="", file=sys.stderr, flush=True))
    with progress.heartbeat():
        yield progress


def counted(items: Iterable[Item], step: Step) -> Iterator[Item]:
    """Yield items; when the next one is asked for, the one before counts as done, beside those done earlier."""
    before = step.done
    for number, item in enumerate(items):
        step.at(before + number)
        yield item


_INDENT = " " * 9

Level = Literal["ok", "warning", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """One line of `fedstats check`.

    Attributes
    ----------
    check : str
        What was looked at, in a word or two.
    level : {"ok", "warning", "FAIL"}
        FAIL: a run would not work like this.
    message : str
        What was found.
    advice : str
        What to do; "" where there is nothing to do.
    """

    check: str
    level: Level
    message: str
    advice: str = ""


def print_findings(found: Iterable[Finding], *, as_json: bool) -> int:
    """Print every finding as soon as it is there, or `ok` and `findings` as one JSON document; return the FAILs."""
    findings: list[Finding] = []
    for finding in found:
        findings.append(finding)
        if not as_json:
            print(_lines(finding), flush=True)
    failed = sum(finding.level == "FAIL" for finding in findings)
    if as_json:
        document = {"ok": not failed, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        warnings = sum(finding.level == "warning" for finding in findings)
        print(f"{len(findings)} checks: {failed} failed, {warnings} with a warning")
    return failed


def _lines(finding: Finding) -> str:
    text = paragraph(f"{finding.check}: {finding.message}", first=f"{finding.level:<9}", rest=_INDENT)
    if finding.advice:
        text += "\n" + paragraph(f"-> {finding.advice}", first=_INDENT, rest=_INDENT + "   ")
    return text
