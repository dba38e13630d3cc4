"""Measurements as lines of JSON, one per configuration, and the table of them: what such benchmarks have in common."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedstats_app.settings.app_config import AppConfig
from research.benchmarks.features import settings_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Line = TypeVar("Line", bound="DataclassInstance")


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments that :func:`run` reads, and ``--clients`` and ``--seeds``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", metavar="FILE.toml or 'key=value ...'")
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 10, 100])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lines", type=Path, help="append the lines of JSON to this file too")
    parser.add_argument("--table", type=Path, help="only print the table of the lines in this file")
    return parser


def run(
    options: argparse.Namespace,
    kind: type[Line],
    measure: Callable[[str, AppConfig], Iterator[Line]],
    table: Callable[[Sequence[Line]], str],
) -> None:
    """Measure every experiment and print its lines and their table, or print the table of an earlier file.

    Parameters
    ----------
    options : Namespace
        Of :func:`parser_of`.
    kind : type
        A line.
    measure : callable
        Yields the lines of an experiment and its configuration.
    table : callable
        Returns lines as Markdown.
    """
    if options.table is not None:
        print(table([kind(**json.loads(line)) for line in options.table.read_text(encoding="utf-8").splitlines()]))
        return
    found = []
    for experiment in options.experiments or [""]:
        for one in measure(experiment, AppConfig.from_run_config(settings_of(experiment))):
            found.append(one)
            line = json.dumps(asdict(one))
            print(line, flush=True)
            if options.lines is not None:
                with options.lines.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
    print(table(found))
