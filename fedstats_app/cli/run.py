"""`fedstats run`: a run in this process, without Ray, servers or further processes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedstats_app.backbones.names import split_names
from fedstats_app.base.option import ConfigError
from fedstats_app.cli import COULD_NOT_WORK, STOPPED, CommandError
from fedstats_app.cli.settings import read_in_turn, read_node_config, settings_of_app
from fedstats_app.simulation import UnknownFlower, run_on, simulated, whole_config


def run(arguments: argparse.Namespace) -> int:
    """Run the app and say what `flwr run . --stream` says of it; the run itself says why it failed.

    Raises
    ------
    CommandError, ValueError
        If nothing could be started.
    """
    # As `flwr run .` there, such as in a folder of `fedstats new`.
    config = settings_of_app(Path.cwd())
    if sites := _sites(arguments.node_config):
        if arguments.supernodes:
            raise CommandError("--supernodes is for a simulation: here each data-path of --node-config is a node")
        config["settle-seconds"] = 0.0  # all nodes are there
    settings = [*arguments.run_config, *arguments.settings]  # argparse does not tell in which order they stood
    config |= read_in_turn(sorted(settings, key=lambda text: not text.endswith(".toml")))
    rules = {} if sites else read_in_turn(arguments.node_config)
    _, *others = configs = _compared(config)
    if sites and others:
        raise CommandError("backbone: every network is a further release of the sites, so start a run for each")
    try:
        for own in others:
            whole_config(own)  # before the first run
        nodes = sites or [{**rules, **node} for node in simulated(arguments.supernodes)]
        folders = []
        for own in configs:
            folders.append(run_on(nodes, own))
        if others:
            from fedstats_app.cli.run_folders import compared, summary

            for line in compared(map(summary, folders)):
                print(f"[fedstats] {line}", end="")
    except (ConfigError, UnknownFlower) as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        return STOPPED
    except Exception:  # noqa: BLE001  # said in the last line, and in the run folder
        return COULD_NOT_WORK
    return 0


def _compared(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a configuration for each backbone, and its own weights if there are any, in lists with commas."""
    backbones = split_names(str(config.get("backbone", "")), ",")
    if len(backbones) == 1:
        return [config]
    weights = str(config.get("backbone-weights", "")).split(",")
    if weights == [""]:
        weights = [""] * len(backbones)
    if len(weights) != len(backbones):
        raise CommandError(f"backbone-weights: must be empty or {len(backbones)}, one for each backbone, with commas")
    return [{**config, "backbone": name, "backbone-weights": own} for name, own in zip(backbones, weights, strict=True)]


def _sites(given: list[str]) -> list[dict[str, Any]]:
    """Read one node-config for each text that names data; the other texts are rules of all of them."""
    read = [read_node_config([text]) for text in given]
    rules = read_node_config(text for text, config in zip(given, read, strict=True) if "data-path" not in config)
    return [{**rules, **config} for config in read if "data-path" in config]
