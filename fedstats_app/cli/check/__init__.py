"""`fedstats check`: what would be wrong with a run, before Flower is started.

In about a second: settings, versions, paths, libraries, certificates and SuperLink, without torch or Flower. With
`--data` also the network, the samples, the disk, and what a run would cost.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedstats_app.cli.check.finding import Finding, report
from fedstats_app.cli.check.local_superlink import check_local_superlink
from fedstats_app.cli.check.versions import check_versions
from fedstats_app.cli.progress import told
from fedstats_app.cli.settings import SettingsError, read_settings, run_config_words
from fedstats_app.data import DatasetError
from fedstats_app.data.folder import layout_at
from fedstats_app.data.loading import resolved
from fedstats_app.grid.progress import Step
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
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
    """Print every finding and, if nothing fails, the command to run in the last line; 1 if something fails.

    Raises
    ------
    ValueError
        If the SuperLink's address is none.
    """
    if arguments.superlink:
        from fedstats_app.cli.check.superlink import parse_address

        parse_address(arguments.superlink)
    with told("check") as progress, progress.doing("checking what the settings name") as step:
        failed = report(examine(arguments, step), as_json=arguments.json)
    if failed:
        return 1
    # What a node's owner starts is no run.
    if not (arguments.json or arguments.data_path or arguments.superlink):
        print(f"\n{command(_given(arguments))}")
    return 0


def _given(arguments: argparse.Namespace) -> list[str]:
    return [*arguments.run_config, *arguments.settings]


def command(given: list[str]) -> str:
    """Return the line that starts the run that was checked."""
    variable = "" if os.environ.get(_VARIABLE) == "1" else f"{_VARIABLE}=1 "
    return f"{variable}flwr run . --stream {run_config_words(given)}".rstrip()


def examine(arguments: argparse.Namespace, step: Step) -> Iterator[Finding]:
    """Do all checks that the arguments allow, the quick ones first.

    Parameters
    ----------
    arguments : argparse.Namespace
        Of `fedstats check`.
    step : Step
        Is told what is being checked.

    Yields
    ------
    Finding
        One for each problem, and one for each thing that is right. Checks that need what an earlier one did not find
        are left out.
    """
    given, config, node = _given(arguments), None, _node(arguments.data_path)
    for finding in check_settings(given):
        yield finding if isinstance(finding, Finding) else Finding("run-config", "ok", _settled(given))
        config = finding if isinstance(finding, AppConfig) else None
    yield from check_versions(simulation=not (node or arguments.superlink))
    if config is not None:
        yield from _check_places(_of_node(arguments) if node else _of_run(config), config)
        yield from _check_libraries(config)
    step.at(0, "checking certificates and the SuperLink")
    yield from _network(arguments)
    if not (node or arguments.superlink or arguments.connection):
        yield check_local_superlink()
    yield from _check_folder(Path.cwd())
    if arguments.data and config is not None:
        yield from _check_data(config, node, arguments.backbone_weights, step)


def _node(data_path: str | None) -> NodeConfig | None:
    if not data_path:
        return None
    return NodeConfig.from_node_config({"data-path": str(Path(data_path).expanduser().absolute())})


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


Place = tuple[str, str, str]


def _of_run(config: AppConfig) -> list[Place]:
    """List the paths that a run's settings name: the check, the key, the path or ""."""
    weights = config.backbone.backbone_weights
    return [
        ("data", "dataset", _path_of(config.data.dataset)),
        ("data", "test-dataset", _path_of(config.data.test_dataset)),
        ("backbone", "backbone-weights", "" if weights == "random" else weights),
        ("run folder", "resume", config.run.resume),
        ("run folder", "extend", config.federation.extend),
    ]


def _of_node(arguments: argparse.Namespace) -> list[Place]:
    return [
        ("data", "data-path", arguments.data_path),
        ("backbone", "backbone-weights", arguments.backbone_weights),
    ]


def _check_places(named: list[Place], config: AppConfig) -> Iterator[Finding]:
    """Look whether something is at every path that is named, and whether folders of data can be told apart by name.

    What is in the files takes longer, and is for `--data`.
    """
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
    return "" if kind in ("builtin", "hub") else where


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
        needed["fedmezo@tune=lora"] = ("peft", "text")
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


def _network(arguments: argparse.Namespace) -> Iterator[Finding]:
    if not (arguments.root_certificates or arguments.certificate or arguments.superlink or arguments.connection):
        return
    from fedstats_app.cli.check.superlink import check_superlink, check_supernodes

    found: dict[str, list[Any]] = {}
    yield from _certificate_files(arguments, found)
    readable = not arguments.root_certificates or "root certificate" in found  # else said already
    if arguments.superlink and readable:
        authorities = found.get("root certificate", [])
        yield from check_superlink(
            arguments.superlink, arguments.root_certificates or "", authorities, arguments.timeout
        )
    if arguments.connection:
        yield check_supernodes(arguments.connection)


def _certificate_files(arguments: argparse.Namespace, found: dict[str, list[Any]]) -> Iterator[Finding]:
    """Check the certificates in files, and note them by what they are."""
    from fedstats_app.cli.check.certificates import check_dates, check_pair, read_certificates
    from fedstats_app.cli.check.superlink import parse_address

    for what, path in (("root certificate", arguments.root_certificates), ("certificate", arguments.certificate)):
        if not path:
            continue
        try:
            found[what] = read_certificates(path)
        except (OSError, ValueError) as error:
            yield Finding(what, "FAIL", str(error), "give a PEM file, such as the ca.crt that signed the SuperLink's")
        else:
            for certificate in found[what]:
                yield check_dates(what, certificate)
    if len(found) == 2:
        host = parse_address(arguments.superlink)[0] if arguments.superlink else None
        yield from check_pair(found["certificate"][0], found["root certificate"], host)


def _check_data(config: AppConfig, node: NodeConfig | None, weights: str, step: Step) -> Iterator[Finding]:
    """Check what a run works with: network, data, disk; then what it costs."""
    from fedstats_app.cli.check.cost import check_cost, check_disk, sizes_of
    from fedstats_app.cli.check.samples import (
        check_class_counts,
        check_kind,
        check_samples,
        check_weights,
        load_data,
    )

    own_data = node is not None
    step.at(0, f"loading backbone {config.backbone.backbone}")
    finding, backbone = check_weights(config, own_data=own_data, weights=weights)
    yield finding
    step.at(0, "reading the list of samples")
    finding, dataset = load_data(config, node)
    yield finding
    sizes = None
    if dataset is not None:
        step.at(0, f"reading some of {len(dataset):,} {dataset.kind}s")
        yield check_samples(dataset)
        if backbone is not None:
            yield from check_kind(dataset, backbone)
        if node is not None:
            yield check_class_counts(dataset, config, node)
        step.at(0, "counting samples by client")
        try:
            sizes = sizes_of(dataset, config, own_data=own_data)
        except ValueError as error:
            yield Finding("partitions", "FAIL", str(error), "change num-clients or the partitioner")
    yield from check_disk(config, node, sizes, backbone.feature_dim if backbone else 0)
    if backbone is not None and dataset is not None and sizes is not None and dataset.kind == backbone.kind:
        step.at(0, "timing the network")
        yield from check_cost(sizes, backbone, config, dataset, own_data=own_data)
