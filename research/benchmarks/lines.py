"""Measurements as lines of JSON, one per configuration, and the table of them: what benchmarks have in common."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Line = TypeVar("Line", bound="DataclassInstance")
# The 97.5% points of Student's t for 1, 2, ... degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Make a parser that shows a module's docstring as it is written."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def experiments_of(description: str | None, *, clients: Sequence[int], seeds: int) -> argparse.ArgumentParser:
    """Make a parser with the arguments that :func:`run` reads, and ``--clients`` and ``--seeds``."""
    parser = parser_of(description)
    parser.add_argument("experiments", nargs="*", metavar="FILE.toml or 'key=value ...'")
    parser.add_argument("--clients", type=int, nargs="+", default=[*clients])
    parser.add_argument("--seeds", type=int, default=seeds, help="how many, from 0")
    parser.add_argument("--lines", type=Path, help="append the lines of JSON to this file too")
    parser.add_argument("--table", type=Path, help="only print the table of the lines in this file")
    return parser


def read(path: Path, kind: type[Line]) -> list[Line]:
    """Read the lines that an earlier measurement left in a file."""
    return [kind(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def printed(lines: Iterable[Line], file: Path | None = None) -> list[Line]:
    """Print lines as JSON when they are measured, append them to a file if there is one, and return them."""
    found = []
    for entry in lines:
        found.append(entry)
        line = json.dumps(asdict(entry))
        print(line, flush=True)
        if file is not None:
            with file.open("a", encoding="utf-8") as opened:
                opened.write(line + "\n")
    return found


def run(
    options: argparse.Namespace,
    kind: type[Line],
    measure: Callable[[str], Iterator[Line]],
    table: Callable[[Sequence[Line]], str],
) -> list[Line]:
    """Measure every experiment and print its lines and their table, or print the table of an earlier file.

    Parameters
    ----------
    options : Namespace
        Of :func:`experiments_of`.
    kind : type
        A line.
    measure : callable
        Yields the lines of an experiment.
    table : callable
        Returns lines as Markdown.
    """
    if options.table is not None:
        found = read(options.table, kind)
    else:
        experiments = options.experiments or [""]
        found = printed((line for experiment in experiments for line in measure(experiment)), options.lines)
    print(table(found))
    return found


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its 95% interval by Student's t; NaN for one value."""
    if len(values) < 2:
        return values[0], float("nan")
    point = _STUDENT[len(values) - 2] if len(values) - 2 < len(_STUDENT) else 1.96
    return float(np.mean(values)), point * float(np.std(values, ddof=1)) / float(np.sqrt(len(values)))
