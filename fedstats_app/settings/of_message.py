"""The configurations that come with every message, read once: a worker is asked many times in a run."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig

# With the types: 1 and True are equal as keys, and one of them may be an error.
_Items = tuple[tuple[str, type, object], ...]


def run_of(run_config: Mapping[str, object]) -> AppConfig:
    """Return :meth:`AppConfig.from_run_config` of a message's context."""
    return _run(_items(run_config))


def node_of(node_config: Mapping[str, object]) -> NodeConfig:
    """Return :meth:`NodeConfig.from_node_config` of a message's context."""
    return _node(_items(node_config))


def _items(values: Mapping[str, object]) -> _Items:
    return tuple((key, type(value), value) for key, value in values.items())


@functools.lru_cache(maxsize=2)
def _run(items: _Items) -> AppConfig:
    return AppConfig.from_run_config({key: value for key, _, value in items})


@functools.lru_cache(maxsize=64)
def _node(items: _Items) -> NodeConfig:
    return NodeConfig.from_node_config({key: value for key, _, value in items})
