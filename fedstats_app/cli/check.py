"""`fedstats check`: what would be wrong with a run, before Flower is started, in about a second."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fedstats_app.cli.finding import Finding, report
from fedstats_app.cli.local_superlink import check_local_superlink
from fedstats_app.cli.progress import told
from fedstats_app.cli.settings import SettingsError, read_settings, run_config_words
from fedstats_app.data import DatasetError
from fedstats_app.data.folder import layout_at
from fedstats_app.data.loading import resolved
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.option import ConfigError

_VARIABLE = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
# Flower looks at every file beneath the app's folder before it starts a run: a second or two for so many.
MOST_FILES = 10_000
# What a backbone of this prefix needs, and the extra that has it.
_LIBRARIES = {
    "timm:": ("timm", "timm"),
    "vision:": ("transformers", "vision"),
    "sentence:": ("transformers", "text"),
    "transformers:": ("transformers", "text"),
}


def run(arguments: argparse.Namespace) -> int:
    """Print every finding and, if nothing fails, the command to run in the last line; 1 if something fails."""
    given = [*arguments.run_config, *arguments.settings]
    with told("check") as progress, progress.doing("checking what the settings name"):
        failed = report(examine(given), as_json=arguments.json)
    if failed:
        return 1
    if not arguments.json:
        print(f"\n{command(given)}")
    return 0


def command(given: list[str]) -> str:
    """Return the line that starts the run that was checked."""
    variable = "" if os.environ.get(_VARIABLE) == "1" else f"{_VARIABLE}=1 "
    return f"{variable}flwr run . --stream {run_config_words(given)}".rstrip()


def examine(given: list[str]) -> Iterator[Finding]:
    """Check settings as `flwr run --run-config` takes them, and what they name on this machine.

    Parameters
    ----------
    given : list of str
        One TOML file, or texts of pairs KEY=VALUE; empty for the defaults.

    Yields
    ------
    Finding
        One for each problem, and one for each thing that is right.
    """
    config = None
    for finding in check_settings(given):
        yield finding if isinstance(finding, Finding) else Finding("run-config", "ok", _settled(given))
        config = finding if isinstance(finding, AppConfig) else None
    if config is not None:
        yield from _check_places(config)
        yield from _check_libraries(config)
    yield check_local_superlink()
    yield from _check_folder(Path.cwd())


def check_settings(given: list[str]) -> Iterator[Finding | AppConfig]:
    """Yield the configuration, or else a finding for each problem."""
    advice = "all keys, with their defaults and what they mean, are in the app's pyproject.toml"
    try:
        yield AppConfig.from_run_config(read_settings(given))
    except SettingsError as error:
        for problem in str(error).split("\n"):
            yield Finding("settings", "FAIL", problem, """as in: --run-config "num-clients=20 method='fedcof'\"""")
    except ConfigError as error:
        for problem in str(error).split("\n")[1:]:
            yield Finding("run-config", "FAIL", problem.strip(), advice)


def _settled(given: list[str]) -> str:
    return f"{' '.join(given)}: every key and value" if given else "the defaults"


def _check_places(config: AppConfig) -> Iterator[Finding]:
    """Look whether something is at every path that is named, and whether folders of data can be told apart by name.

    What is in the files takes longer, and is the doctor's.
    """
    weights = config.backbone.backbone_weights
    named = [
        ("data", "dataset", _path_of(config.data.dataset)),
        ("data", "test-dataset", _path_of(config.data.test_dataset)),
        ("backbone", "backbone-weights", "" if weights == "random" else weights),
        ("run folder", "resume", config.run.resume),
        ("run folder", "extend", config.federation.extend),
    ]
    for check, key, path in named:
        if path and Path(path).expanduser().exists():
            unclear = _unclear(config, key)
            advice = "docs/data.md says how folders are read"
            yield (
                Finding(check, "FAIL", f"{key}: {unclear}", advice)
                if unclear
                else Finding(check, "ok", f"{key}: {path} is there")
            )
        elif path:
            yield Finding(check, "FAIL", f"{key}: nothing is at {path}", "correct the path, on this machine")


def _unclear(config: AppConfig, key: str) -> str:
    """Return what a run would ask about the folders that `dataset` or `test-dataset` names, "" if it knows."""
    spec = {"dataset": config.data.dataset, "test-dataset": config.data.test_dataset}.get(key, "")
    kind, _, where = resolved(spec).partition(":")
    try:
        if kind == "folder":
            layout_at(where, config.data.folder_levels)
    except (DatasetError, OSError) as error:
        return str(error)
    return ""


def _path_of(spec: str) -> str:
    """Return where a data set is, "" for one that is not in a file of this machine."""
    kind, _, where = spec.partition(":")
    return "" if kind in ("builtin", "hub") else where.partition(":")[2] if kind == "synthetic" else where


def _check_folder(folder: Path) -> Iterator[Finding]:
    """Warn of an app's folder with so many files, mostly of an environment, that `flwr run` is slow to start."""
    if not (folder / "pyproject.toml").is_file():
        return
    files: Counter[str] = Counter()
    for place, _, names in os.walk(folder):  # follows no link, as Flower
        files[(*Path(place).relative_to(folder).parts, ".")[0]] += len(names)
        if files.total() > MOST_FILES:
            most = max(files, key=lambda name: files[name])
            message = f"flwr run looks at every file beneath {folder}: more than {MOST_FILES:,}, most of them in {most}"
            yield Finding("folder", "warning", message, "keep environments and data elsewhere; links are not followed")
            return


def _check_libraries(config: AppConfig) -> Iterator[Finding]:
    name = config.backbone.backbone
    needed = {f"backbone {name!r}": _LIBRARIES[prefix] for prefix in _LIBRARIES if name.startswith(prefix)}
    if config.run.fine_tune == "fedmezo" and config.fedmezo.tune == "lora":
        needed["fedmezo-tune 'lora'"] = ("peft", "text")
    needed |= {f"tracker {tracker!r}": (tracker, tracker) for tracker in config.tracker.names}
    for what, (library, extra) in needed.items():
        if not _installed(library):
            message = f"{what} needs {library}, which is not installed for {sys.executable}"
            yield Finding("libraries", "FAIL", message, f'pip install "fedstats-app[{extra}]"')


def _installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ValueError:  # somebody forbade it
        return False
