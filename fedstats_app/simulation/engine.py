"""simulate: one run in this process."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context, RecordDict

from fedstats_app import client_app, server_app
from fedstats_app.server.lifetime import IN_PROCESS, LastWord, folder_of
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.simulation.flower import SERVER_NODE_ID, check_flower, task
from fedstats_app.simulation.grid import InProcessGrid

# As in Flower's simulation.
DEFAULT_SUPERNODES = 2


def simulate(
    run_config: Mapping[str, str | int | float | bool] | None = None, *, supernodes: int | None = None
) -> Path:
    """Run the app in this process: the same ServerApp and ClientApp as `flwr run`, and the same results to the byte.

    What the run says is printed, as with `flwr run . --stream`. Ctrl-C ends it.

    Parameters
    ----------
    run_config : mapping, optional
        As of `flwr run --run-config`, such as ``{"num-clients": 20, "method": "fedcof"}``; other keys keep the defaults
        of pyproject.toml.
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
        What the run failed with; it is in the run folder's status, too.
    """
    if supernodes is not None and (type(supernodes) is not int or supernodes < 1):
        raise ValueError(f"supernodes: must be a whole number of at least 1, got {supernodes!r}")
    check_flower()
    config = {**AppConfig().to_run_config(), **(run_config or {})}
    AppConfig.from_run_config(config)
    run_id = secrets.randbits(63)
    context = Context(run_id, SERVER_NODE_ID, {IN_PROCESS: True}, RecordDict(), config)
    with task(run_id):
        grid = InProcessGrid(client_app.app, supernodes or DEFAULT_SUPERNODES, run_id, config)
        try:
            server_app.app(grid, context)
        finally:
            grid.close()
            LastWord.forget()
    return folder_of(context)
