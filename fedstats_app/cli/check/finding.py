"""What a check found, and how it is printed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from fedstats_app.cli.terminal import paragraph

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


def report(found: Iterable[Finding], *, as_json: bool) -> int:
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
