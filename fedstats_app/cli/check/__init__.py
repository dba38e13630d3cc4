"""`fedstats check`: what would be wrong with a run, before Flower is started.

In about a second: settings, versions, paths, libraries, certificates and SuperLink, without torch or Flower. With
`--data` also the network, the samples and the disk.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fedstats_app.base.option import ConfigError
from fedstats_app.base.progress import Step
from fedstats_app.cli.check.machine import check_local_superlink, check_versions
from fedstats_app.cli.settings import SettingsError, read_settings, run_config_words
from fedstats_app.cli.terminal import Finding, print_findings, told
from fedstats_app.data import DatasetError
from fedstats_app.data.folder import layout_at
from fedstats_app.data.loading import resolved
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig

_VARIABLE = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
# What a backbone of this prefix needs, and the extra that has it.
_LIBRARIES = {
    "timm:": ("timm", "timm"),
    "vision:": ("transformers", "vision"),
    "sentence:": ("transformers", "text"),
    "transformers:": ("transformers", "text"),
}


def run(arguments: argparse.Namespace) -> int:
    """Print every finding and, if nothing fails, the command to run in the last line; 1 if something fails.

    Raises
    ------
    ValueError
        If the SuperLink's address is none.
    """
    if arguments.superlink:
        from fedstats_app.cli.check.superlink import parse_address

        parse_address(arguments.superlink)  # before anything else is said
    given = [*arguments.run_config, *arguments.settings]
    with told("check") as progress, progress.doing("checking what the settings name") as step:
        failed = print_findings(examine(arguments, given, step), as_json=arguments.json)
    # What a node's owner starts is no run.
    if not (failed or arguments.json or arguments.data_path or arguments.superlink):
        variable = "" if os.environ.get(_VARIABLE) == "1" else f"{_VARIABLE}=1 "
        print(f"\n{variable}flwr run . --stream {run_config_words(given)}".rstrip())
    return 1 if failed else 0


def examine(arguments: argparse.Namespace, given: list[str], step: Step) -> Iterator[Finding]:
    """Do all checks that the arguments allow, the quick ones first; what needs what is wrong is left out.

    There is one finding for each problem, and one for each thing that is right.
    """
    config, node = None, None
    if arguments.data_path:
        path = Path(arguments.data_path).expanduser().absolute()
        node = NodeConfig.from_node_config({"data-path": str(path)})
    try:
        config = AppConfig.from_run_config(read_settings(given))
        yield Finding("run-config", "ok", f"{' '.join(given)}: every key and value" if given else "the defaults")
    except SettingsError as error:
        for problem in str(error).split("\n"):
            yield Finding("settings", "FAIL", problem, """as in: --run-config "num-clients=20 method='fedcof'\"""")
    except ConfigError as error:
        for problem in str(error).split("\n")[1:]:
            advice = "all keys, with their defaults and what they mean, are in the app's pyproject.toml"
            yield Finding("run-config", "FAIL", problem.strip(), advice)
    yield from check_versions(simulation=not (node or arguments.superlink))
    if config is not None:
        yield from _check_places(config, arguments)
        yield from _check_libraries(config)
    step.at(0, "checking certificates and the SuperLink")
    if arguments.root_certificates or arguments.superlink:
        from fedstats_app.cli.check.superlink import check_network

        yield from check_network(arguments)
    if not (node or arguments.superlink):
        yield check_local_superlink()
    if arguments.data and config is not None:
        from fedstats_app.cli.check.data import check_data

        yield from check_data(config, node, arguments.backbone_weights, step)


def _check_places(config: AppConfig, arguments: argparse.Namespace) -> Iterator[Finding]:
    """Look whether something is at every path that is named, and whether folders of data can be told apart by name.

    What is in the files takes longer, and is for `--data`.
    """
    data, weights = config.data, config.backbone.backbone_weights
    named = [
        ("data", "dataset", _path_of(data.dataset)),
        ("data", "test-dataset", _path_of(data.test_dataset)),
        ("backbone", "backbone-weights", "" if weights == "random" else weights),
        ("run folder", "resume", config.run.resume),
        ("run folder", "extend", config.federation.extend),
    ]
    if arguments.data_path:
        weights = arguments.backbone_weights
        named = [("data", "data-path", arguments.data_path), ("backbone", "backbone-weights", weights)]
    for check, key, path in named:
        if not path:
            continue
        spec = {"dataset": data.dataset, "test-dataset": data.test_dataset}.get(key, "")
        if not Path(path).expanduser().exists():
            yield Finding(check, "FAIL", f"{key}: nothing is at {path}", "correct the path, on this machine")
        elif unclear := _unclear(spec, data.folder_levels):
            yield Finding(check, "FAIL", f"{key}: {unclear}", "docs/data.md says how folders are read")
        else:
            yield Finding(check, "ok", f"{key}: {path} is there")


def _path_of(spec: str) -> str:
    """Find where a data set is, "" for one that is not in a file of this machine."""
    kind, _, where = spec.partition(":")
    return "" if kind in ("builtin", "hub") else where


def _unclear(spec: str, levels: str) -> str:
    """Name what a run would ask about the folders of a data set, "" if it knows."""
    kind, _, where = resolved(spec).partition(":")
    try:
        if kind == "folder":
            layout_at(where, levels)
    except (DatasetError, OSError) as error:
        return str(error)
    return ""


def _check_libraries(config: AppConfig) -> Iterator[Finding]:
    name = config.backbone.backbone
    needed = {f"backbone {name!r}": _LIBRARIES[prefix] for prefix in _LIBRARIES if name.startswith(prefix)}
    for what, (library, extra) in needed.items():
        if not _installed(library):
            message = f"{what} needs {library}, which is not installed for {sys.executable}"
            yield Finding("libraries", "FAIL", message, f'pip install "fedstats-app[{extra}]"')


def _installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ValueError:  # it is forbidden: None in sys.modules
        return False
