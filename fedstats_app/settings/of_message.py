"""The configurations that come with every message: read once, and what a run may not choose on another's node.

Data sets, columns, files and names of a hub are not the server's to choose. With the label's column it would learn
another attribute of the same people; the error about a file says whether it is there and what it holds; and a name of
the hub is downloaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from fedstats_app.data.clients import data_spec
from fedstats_app.data.data_options import is_table
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig, with_arguments

# All that the server is told; what was asked for stands in the node's log.
REFUSED = "refused by this node's owner (the reason is in the log of this node)"
_ROLES = ("image", "text", "label")


def refused_choice(run: AppConfig, node: NodeConfig) -> str:
    """Return what a run chooses that only the node's owner may choose, in words for the node's log; "" if nothing.

    In a simulation all is the same user's.
    """
    if not node.is_owners:
        return ""
    if not node.data_path:
        dataset = run.data.dataset
        if dataset != "builtin" and dataset not in node.allowed_datasets:
            return f"dataset: the run names {dataset!r}, which must be among allowed-datasets of the node-config"
    elif is_table(data_spec(node.data_path)):
        for role in _ROLES:
            requested, own = getattr(run.data, f"{role}_column"), getattr(node, f"{role}_column")
            if requested and requested != own:
                return f"{role}-column: the run asks for {requested!r}, the node-config has {own or 'none'!r}"
    if node.data_path and run.data.person_column not in ("", node.person_column):
        requested, own = run.data.person_column, node.person_column
        return f"person-column: the run asks for {requested!r}, the node-config has {own or 'none'!r}"
    weights = run.backbone.backbone_weights
    if weights not in ("", "random") and not node.backbone_weights:
        return f"backbone-weights: the run names {weights!r}, the node-config has none"
    # Arguments say how large a network is that must be built before its weights are seen not to fit.
    for network in run.backbone.networks:
        name = network.backbone
        chosen = with_arguments(name, network.backbone_arguments)
        if node.allowed_backbones is None:
            # Those with another prefix are looked up on a hub, or in a folder of that name.
            if chosen != name or ":" in name.removeprefix("random:"):
                return f"backbone: the run names {chosen!r}, which must be among allowed-backbones of the node-config"
        elif chosen not in node.allowed_backbones:
            return f"backbone: the run names {chosen!r}, allowed-backbones has {', '.join(node.allowed_backbones)}"
    return ""


def run_of(run_config: Mapping[str, object]) -> AppConfig:
    """Return :meth:`AppConfig.from_run_config` of a message's context: a worker is asked many times in a run."""
    config: AppConfig = _read_once(AppConfig.from_run_config, _items(run_config))
    return config


def node_of(node_config: Mapping[str, object]) -> NodeConfig:
    """Return :meth:`NodeConfig.from_node_config` of a message's context."""
    config: NodeConfig = _read_once(NodeConfig.from_node_config, _items(node_config))
    return config


def _items(values: Mapping[str, object]) -> tuple[tuple[str, type, object], ...]:
    # With the types: 1 and True are equal as keys, and one of them may be an error.
    return tuple((key, type(value), value) for key, value in values.items())


@functools.lru_cache(maxsize=64)
def _read_once(read: Callable[[Mapping[str, object]], Any], items: tuple[tuple[str, type, object], ...]) -> Any:
    return read({key: value for key, _, value in items})
