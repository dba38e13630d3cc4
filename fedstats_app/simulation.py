"""A whole run in this process: the same ServerApp and ClientApp, without Ray, servers or further processes."""

from __future__ import annotations

import importlib.metadata
import secrets
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

from fedstats_app import client_app, server_app
from fedstats_app.base.option import flattened
from fedstats_app.data.clients import own_dataset, partitions, training_set
from fedstats_app.grid.in_process import SERVER_NODE_ID, InProcessGrid, Value, task
from fedstats_app.server.lifetime import FOLDER_NAME, IN_PROCESS, LastWord, folder_of
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig

# As in Flower's simulation.
DEFAULT_SUPERNODES = 2
# Versions whose internals were checked; they are the same in both.
FLOWER_VERSIONS = ("1.41", "1.42")


class UnknownFlower(RuntimeError):
    """A version of Flower that was not tried in one process."""


def simulate(run_config: Mapping[str, Any] | None = None, *, supernodes: int | None = None) -> Path:
    """Run the app in this process: the same ServerApp and ClientApp as `flwr run`, and the same results to the byte.

    The run's log is printed, as with `flwr run . --stream`. Ctrl-C and SIGTERM stop it.

    Parameters
    ----------
    run_config : mapping, optional
        As of `flwr run --run-config`, such as ``{"num-clients": 20, "method": ["fedncm", "fedcof"]}``; other keys keep
        the defaults of pyproject.toml. Here paths of data may be relative, and numbers numpy's.
    supernodes : int, optional
        How many nodes the clients are spread over, by default 2; results do not depend on it.

    Returns
    -------
    Path
        The run folder.

    Raises
    ------
    ConfigError
        If a key or a value is wrong; nothing was started.
    UnknownFlower
        If Flower has another version than this was tried with.
    RuntimeError
        If another run is under way in this process.
    Exception
        The error that the run failed with; it is in the run folder's status, too.
    """
    return run_on(simulated(supernodes), {key: _plain(value) for key, value in flattened(run_config or {}).items()})


def _plain(value: Any) -> Value:
    """Return what a run-config can hold: of a list its words with commas, of a path its text, of numpy Python's own."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    plain: Value = str(value) if isinstance(value, Path) else getattr(value, "item", lambda: value)()
    return plain


def simulated(supernodes: int | None = None) -> list[Mapping[str, Value]]:
    """Return node configurations of a simulation, by default of 2 nodes."""
    number = DEFAULT_SUPERNODES if supernodes is None else supernodes
    if type(number) is not int or number < 1:
        raise ValueError(f"supernodes: must be a whole number of at least 1, got {supernodes!r}")
    return [{"partition-id": node, "num-partitions": number} for node in range(number)]


def run_on(node_configs: Sequence[Mapping[str, Value]], run_config: Mapping[str, Value], name: str = "") -> Path:
    """Run the app in this process on nodes of these configurations, as :func:`simulate` does on those of a simulation.

    The run folder has the given name, or one made of the time.
    """
    check_flower()
    config = whole_config(run_config)
    for node_config in node_configs:
        NodeConfig.from_node_config(node_config)
    for read_once in (training_set, partitions):
        read_once.cache_clear()  # files may have changed since an earlier run of this process
    run_id = secrets.randbits(63)
    context = Context(run_id, SERVER_NODE_ID, {IN_PROCESS: True, FOLDER_NAME: name}, RecordDict(), config)
    with task(run_id), _stopped_by_sigterm():
        grid = InProcessGrid(client_app.app, node_configs, run_id, config)
        try:
            server_app.app(grid, context)
        finally:
            grid.close()
            LastWord.forget()
    return folder_of(context)


def whole_config(run_config: Mapping[str, Value]) -> dict[str, Value]:
    """Return a run's configuration with all defaults, paths of data made absolute; a ConfigError says what is wrong."""
    config = {**AppConfig().to_run_config(), **flattened(run_config)}
    for key in ("dataset", "test-dataset"):  # here, unlike under `flwr run`, the user's folder is known
        kind, _, path = str(config[key]).rpartition(":")
        if kind in ("folder", "parquet", "csv", "arrow") or (not kind and "/" in path):
            config[key] = f"{kind}:{Path(path).expanduser().absolute()}".removeprefix(":")
    AppConfig.from_run_config(config)
    return config


def make_release(node_config: Mapping[str, Value], run_config: Mapping[str, Value], path: Path) -> None:
    """Ask a node of this configuration, in this process, the two questions of a run, and write its answers to a file.

    The run-config's methods and backbone say which statistics.

    Raises
    ------
    ConfigError, UnknownFlower
        As :func:`simulate`.
    RejectedReply
        If the node refuses.
    ValueError
        If the data cannot be read, or nothing of them may leave.
    """
    from fedstats_app.backbones.registry import loaded_backbone
    from fedstats_app.statistics import merge_specs
    from fedstats_app.wire import (
        QUERY_CLIENTS,
        QUERY_STATISTICS,
        StatisticsRequest,
        read_node_info,
        read_statistics_reply,
    )
    from fedstats_app.wire.release import write_release

    check_flower()
    config = AppConfig.from_run_config(run_config)
    if config.federation.exact_sums:
        raise ValueError("exact-sums: takes the number of all sites' samples, which a release is made without")
    node = NodeConfig.from_node_config(node_config)
    own_dataset(node.data_path, node.data_options(config.data))  # errors are raised here, not written to a log
    options = config.backbone_for(own_data=True, weights=node.backbone_weights)
    backbone = loaded_backbone(options, node.engine_root(config.cache))
    run_id = secrets.randbits(63)
    with task(run_id):
        grid = InProcessGrid(client_app.app, [node_config], run_id, config.to_run_config())
        try:
            info = read_node_info(_answer(grid, RecordDict(), QUERY_CLIENTS))
            if not info.class_names:
                raise ValueError("nothing can be released: every class has fewer samples than min-class-count")
            methods = [
                method
                for method in config.configured_methods.values()
                if not (info.targets and config.run.method == "all" and method.cannot_take(info.targets))
            ]
            spec = merge_specs(method.specification for method in methods)
            request = StatisticsRequest(
                len(info.class_names),
                replace(spec, targets=info.targets),
                config.federation.wire_dtype,
                seed=config.run.seed,
                backbone_fingerprint=backbone.fingerprint,
                class_names=tuple(sorted(info.class_names)),
            )
            reply = _answer(grid, request.to_content(), QUERY_STATISTICS)
        finally:
            grid.close()
    if not read_statistics_reply(reply, request, feature_dim=backbone.feature_dim).num_examples:
        raise ValueError("nothing can be released: no class has as many readable samples as min-class-count")
    write_release(path, info, request, reply.content, backbone.name)


def _answer(grid: InProcessGrid, content: RecordDict, kind: str) -> Message:
    [node] = grid.get_node_ids()
    [reply] = grid.send_and_receive([Message(content, node, kind)])
    return reply


def check_flower(version: str = "") -> None:
    """Refuse versions of Flower, such as "1.41.0" and by default the installed one, whose internals were not checked.

    Raises
    ------
    UnknownFlower
        If it is another one.
    """
    version = version or importlib.metadata.version("flwr")
    if ".".join(version.split(".")[:2]) not in FLOWER_VERSIONS:
        raise UnknownFlower(
            f"a run in one process needs Flower {' or '.join(FLOWER_VERSIONS)}, got {version}: use `flwr run .`, or "
            f'pip install "flwr=={FLOWER_VERSIONS[-1]}.*"'
        )


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does; only a main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise KeyboardInterrupt("SIGTERM")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
