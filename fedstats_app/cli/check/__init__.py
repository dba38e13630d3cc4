"""`fedstats check`: what would be wrong with a run, before Flower is started.

In a few seconds: settings, versions, paths, libraries, certificates, SuperLink, labels and 50 samples of data on this
machine, without torch or Flower. With `--data` also the network, data of the hub and 200 samples.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fedstats_app.backbones.names import split_names
from fedstats_app.base.option import ConfigError
from fedstats_app.base.progress import Step
from fedstats_app.cli.check.machine import (
    LOOPBACK,
    check_local_superlink,
    check_proxy,
    check_versions,
    installed_version,
)
from fedstats_app.cli.settings import SettingsError, read_node_config, read_settings, run_config_words
from fedstats_app.cli.terminal import Finding, print_findings, told
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
    """Print every finding and, if nothing fails, the command to run in the last line; 1 if something fails."""
    given = [*arguments.run_config, *arguments.settings]
    with told("check") as progress, progress.doing("checking what the settings name") as step:
        failed = print_findings(examine(arguments, given, step), as_json=arguments.json)
    # A node's owner starts no run.
    if not (failed or arguments.json or arguments.node_config or arguments.superlink):
        variable = "" if os.environ.get(_VARIABLE) == "1" else f"{_VARIABLE}=1 "
        print(f"\n{variable}flwr run . --stream {run_config_words(given)}".rstrip())
    return 1 if failed else 0


def examine(arguments: argparse.Namespace, given: list[str], step: Step) -> Iterator[Finding]:
    """Do all checks that the arguments allow, the quick ones first, and leave out those that need what failed.

    There is one finding for each problem, and one for each thing that is right.
    """
    config, node, simulation = None, None, not (arguments.node_config or arguments.superlink)
    try:
        if arguments.node_config:
            node = NodeConfig.from_node_config(read_node_config(arguments.node_config))
        config = AppConfig.from_run_config(read_settings(given))
        yield Finding("run-config", "ok", f"{' '.join(given)}: every key and value" if given else "the defaults")
    except SettingsError as error:
        for problem in str(error).split("\n"):
            yield Finding("settings", "FAIL", problem, """as in: --run-config "num-clients=20 method='fedcof'\"""")
    except ConfigError as error:
        # The first line of a run-config's problems is their number.
        check = "run-config" if node or not arguments.node_config else "node-config"
        for problem in str(error).split("\n")[check == "run-config" :]:
            advice = f"all keys of a {check}, with their meaning, are in docs"
            yield Finding(check, "FAIL", problem.strip().removeprefix("node-config: "), advice)
    yield from check_versions(simulation=simulation)
    if simulation or arguments.superlink:
        yield from check_proxy(arguments.superlink[0] if arguments.superlink else LOOPBACK)
    if config is not None:
        yield from _check_places(config, node)
        for name in split_names(config.backbone.backbone):
            library, extra = _LIBRARIES.get(name.partition(":")[0] + ":", ("", ""))
            if library and not installed_version(library):
                message = f"backbone {name!r} needs {library}, which is not installed for {sys.executable}"
                yield Finding("libraries", "FAIL", message, f'pip install "fedstats-app[{extra}]"')
    step.at(0, "checking certificates and the SuperLink")
    if arguments.root_certificates or arguments.superlink:
        from fedstats_app.cli.check.superlink import check_certificates, check_superlink

        certificates = [*check_certificates(arguments.root_certificates)] if arguments.root_certificates else []
        yield from certificates
        if arguments.superlink and not any(finding.level == "FAIL" for finding in certificates):
            yield from check_superlink(arguments.superlink, arguments.root_certificates)
    if simulation:
        yield check_local_superlink()
    if config is None:
        return
    data = [node.data_path] if node else [resolved(spec) for spec in (config.data.dataset, config.data.test_dataset)]
    own = [spec for spec in data if spec and spec != "builtin"]
    if not arguments.data and (not own or any(spec.startswith("hub:") for spec in own)):
        return
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
    from fedstats_app.cli.check.data import FEW_SAMPLES, MANY_SAMPLES, check_data, check_network

    if arguments.data:
        yield from check_network(config, node, step)
    yield from check_data(config, node, step, MANY_SAMPLES if arguments.data else FEW_SAMPLES)


def _check_places(config: AppConfig, node: NodeConfig | None) -> Iterator[Finding]:
    """Look whether something is at every path that is named, but for data, which are loaded."""
    places = [("run folder", "resume", config.run.resume), ("run folder", "extend", config.federation.extend)]
    weights = node.backbone_weights if node else config.backbone.backbone_weights
    try:
        networks = config.backbone_for(own_data=node is not None, weights=weights).networks
        paths = [network.backbone_weights.removeprefix("random") for network in networks]
        places += [("backbone", "backbone-weights", path) for path in paths]
    except ValueError as error:
        yield Finding("backbone", "FAIL", str(error), "name a file for each network, joined by +")
    for check, key, path in places:
        if path and Path(path).expanduser().exists():
            yield Finding(check, "ok", f"{key}: {path} is there")
        elif path:
            yield Finding(check, "FAIL", f"{key}: nothing is at {path}", "correct the path, on this machine")
