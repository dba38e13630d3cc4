"""`python -m research.reproduce`: a table of a paper, ours beside the published numbers."""

from __future__ import annotations

import argparse
import difflib
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol, TypeVar

import tomli_w

from fedstats_app.cli import CommandError
from fedstats_app.cli.terminal import table
from research.reproduce.catalogue import Catalogue
from research.reproduce.plan import PlannedRun, cells_of, planned
from research.reproduce.preset import Preset, preset_names, preset_of_run_config, read_preset, with_sweep

DEFAULT_OUTPUT_DIR = "~/fedstats-reproduce"
PRESETS = Path(__file__).parents[1] / "presets"
_OWN_KEYS = ("seed", "output-dir", "resume")
_DESCRIPTION = (
    "Run every cell of a paper's table, over its seeds, and print ours beside the published number, with the known "
    "reasons why they may differ. Without a name, list the tables. Runs that completed are not made again, so an "
    "interrupted command can be repeated."
)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_NamedType = TypeVar("_NamedType", bound=_Named)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code is 0, or 2 if there is no result, which is said."""
    try:
        _run(_arguments(argv))
    except (CommandError, ValueError, OSError) as error:
        print(f"research.reproduce: {error}", file=sys.stderr)
        return 2
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    command = argparse.ArgumentParser(prog="python -m research.reproduce", description=_DESCRIPTION)
    command.add_argument("name", nargs="?", metavar="NAME", help="of a table, or FILE.toml (default: list them)")
    command.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=VALUE",
        help="run-config keys in place of the table's; a list sweeps over its values: dirichlet-alpha=[0.1,0.5]",
    )
    command.add_argument("--seeds", metavar="SEEDS", help="such as 0-4 or 0,2 (default: the table's)")
    command.add_argument(
        "--row", action="append", default=[], metavar="NAME", help="only this row; * and ? as in file names; several"
    )
    command.add_argument("--column", action="append", default=[], metavar="NAME", help="only this column, likewise")
    command.add_argument(
        "--output-dir", default="", metavar="DIR", help="for tables and runs (default: ~/fedstats-reproduce/NAME)"
    )
    command.add_argument("--dry-run", action="store_true", help="print the settings of every run and make none")
    # argparse takes words before an option or after it, not both.
    arguments, others = command.parse_known_args(argv)
    arguments.settings += others
    return arguments


def _run(arguments: argparse.Namespace) -> None:
    catalogue = Catalogue.read(PRESETS)
    if not arguments.name:
        presets = [read_preset(PRESETS / f"{name}.toml", catalogue) for name in preset_names(PRESETS)]
        listed = [(preset.name, preset.title) for preset in presets]
        others = [
            (f"{place.paper}: {place.name}", place.command or f"{place.page} {place.why}".rstrip())
            for place in catalogue.places
            if not place.presets
        ]
        print(table(("name", "what"), [*listed, *others], left=2))
        return
    preset = _preset(arguments.name, catalogue)
    given, sweep = _given(arguments.settings)
    own = {key for row in preset.rows for key in row.point}
    sweep |= {key: [given.pop(key)] for key in own & set(given)}
    rows = with_sweep(replace(preset, rows=tuple(_some(preset.rows, arguments.row, "row"))), sweep).rows
    columns = _some(preset.columns, arguments.column, "column")
    preset = replace(preset, rows=(*preset.rows, *rows) if sweep else preset.rows)
    seeds = _seeds(arguments.seeds) if arguments.seeds else preset.seeds
    runs = planned(cells_of(preset, rows, columns, seeds, given))
    if arguments.dry_run:
        print(_as_settings(runs))
        return
    from fedstats_app import simulate
    from research.reproduce.report import reproduce
    from research.reproduce.running import RunFailedError

    place = Path(arguments.output_dir or f"{DEFAULT_OUTPUT_DIR}/{preset.name}").expanduser().absolute()
    try:
        report = reproduce(preset, runs, catalogue, given=given, folder=place, simulate=simulate, say=_say)
    except RunFailedError as error:
        raise CommandError(str(error)) from error
    print(report.text)
    print("\n".join(str(file) for file in report.files))


def _preset(name: str, catalogue: Catalogue) -> Preset:
    if not name.endswith(".toml"):
        if name not in preset_names(PRESETS):
            near = difflib.get_close_matches(name, preset_names(PRESETS), n=1)
            raise CommandError(
                f"no such preset: {name!r}{f'; did you mean {near[0]}?' if near else ''}; "
                "`python -m research.reproduce` lists them, FILE.toml names one's own"
            )
        return read_preset(PRESETS / f"{name}.toml", catalogue)
    path = Path(name).expanduser()
    try:
        is_preset = "columns" in tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from error
    return read_preset(path, catalogue) if is_preset else preset_of_run_config(path)


def _given(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the keys that have one value, and those that have a list of them."""
    given: dict[str, Any] = {}
    sweep: dict[str, list[Any]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (key and equals) or key.startswith("-"):
            raise CommandError(
                f"{word!r} is neither KEY=VALUE nor an option; `python -m research.reproduce --help` lists them"
            )
        if key in _OWN_KEYS:
            raise CommandError(f"{key}: set by this command (--seeds, --output-dir), got {text!r}")
        value = _value(text)
        if isinstance(value, list):
            sweep[key] = value
        else:
            given[key] = value
    if empty := [key for key, values in sweep.items() if not values]:
        raise CommandError(f"{empty[0]}: must be a value or a list of at least one, got []")
    return given, sweep


def _value(text: str) -> Any:
    """Read a value as TOML would: numbers, truth values, lists and quoted text as such, the rest as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _some(all_of: Sequence[_NamedType], patterns: Sequence[str], role: str) -> list[_NamedType]:
    """Return those whose name, or a part of it between commas, fits a pattern, in small letters; all without any."""

    def fits(name: str) -> bool:
        return any(fnmatchcase(part, pattern.lower()) for part in (name, *name.split(", ")) for pattern in patterns)

    chosen = [entry for entry in all_of if not patterns or fits(entry.name.lower())]
    if not chosen:
        names = "; ".join(entry.name for entry in all_of)
        raise CommandError(f"no {role} is called {' or '.join(map(repr, patterns))}; there are: {names}")
    return chosen


def _seeds(text: str) -> list[int]:
    """Read "0-4" or "0,1,2"."""
    try:
        seeds = [
            seed
            for part in text.split(",")
            for low, _, high in (part.partition("-"),)
            for seed in range(int(low), int(high or low) + 1)
        ]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds):
        raise CommandError(f"--seeds: must be different whole numbers from 0, such as 0-4 or 0,2, got {text!r}")
    return seeds


def _as_settings(runs: Sequence[PlannedRun]) -> str:
    """Write the settings of all runs; each is what `flwr run --run-config FILE` takes."""
    return "\n".join(f"# {run.title()}; seed {run.settings['seed']}\n{tomli_w.dumps(run.settings)}" for run in runs)


def _say(line: str) -> None:
    print(line, flush=True)
