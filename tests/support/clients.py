"""A small federation: labelled features, the ClientApp that answers for them, and grids to reach it over."""

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.methods import METHODS
from fedstats_app.statistics import ClientStatistics, StatisticsSpec
from fedstats_app.strategies import Fed3R, FedCGS, FedCOF, FedNCM, OnePass, StatisticsStrategy
from fedstats_app.testing import FIRST_NODE_ID, Fault, LocalGrid
from fedstats_app.wire import NodeInfo, guard, node_info_reply, per_client, read_statistics_request, statistics_reply
from tests.support.options import configured

NUM_CLASSES, DIM = 6, 8
# Flower says much of each of many short runs.
logging.getLogger("flwr").setLevel(logging.ERROR)

Make = Callable[..., StatisticsStrategy]
OTHER = {f"{name}, other options": configured(name)[-1:] for name in METHODS if METHODS[name].options_type.keys()}
DEFAULT = {name: [method.default()] for name, method in METHODS.items()}
# FedCGS as its paper has it.
PAPERS: dict[str, Any] = {"covariance": "total", "shrinkage": 0.0}
# What is tested of one holds for all.
STRATEGIES: dict[str, Make] = {
    **{name: functools.partial(StatisticsStrategy, methods=methods) for name, methods in (DEFAULT | OTHER).items()},
    "one pass": functools.partial(StatisticsStrategy, methods=[one for [one] in DEFAULT.values()]),
    "papers in one pass": lambda c, **options: OnePass(
        c, [FedNCM(c), Fed3R(c, ridge_lambda=0.01), FedCOF(c, shrinkage=1.0), FedCGS(c, **PAPERS)], **options
    ),
    "fedcof, several means": lambda c, **options: FedCOF(c, shrinkage=1.0, means_per_class=3, **options),
    "one pass, several means": lambda c, **options: OnePass(
        c, [FedCOF(c, shrinkage=1.0, means_per_class=2), FedCGS(c, **PAPERS), FedNCM(c)], **options
    ),
}


@dataclass
class Clients:
    """Labelled features spread unevenly over clients: some lack classes, one has no data.

    Attributes
    ----------
    num_clients : int
        K.
    broken : mapping
        From client to what its handler raises.
    """

    num_clients: int = 14
    seed: int = 0
    broken: Mapping[int, BaseException] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        n = 12 * self.num_clients
        labels = rng.integers(0, NUM_CLASSES, n)
        features = rng.normal(size=(n, DIM)) + 1.5 * rng.normal(size=(NUM_CLASSES, DIM))[labels] + 0.5
        weights = rng.dirichlet(np.full(self.num_clients, 0.5), NUM_CLASSES)
        weights[:, self.num_clients // 2] = 0.0
        weights /= weights.sum(axis=1, keepdims=True)
        self.owner = torch.tensor([rng.choice(self.num_clients, p=weights[label]) for label in labels])
        self.features, self.labels = torch.from_numpy(features), torch.from_numpy(labels)

    def part(self, client: int) -> tuple[Tensor, Tensor]:
        mine = self.owner == client
        return self.features[mine], self.labels[mine]

    def statistics(self, spec: StatisticsSpec, *, without: set[int] = frozenset(), seed: int = 0) -> ClientStatistics:  # type: ignore[assignment]
        """Return the merged statistics of all clients but some, computed without Flower."""
        parts = [
            spec.from_features(*self.part(client), NUM_CLASSES, seed=seed)
            for client in range(self.num_clients)
            if client not in without
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def app(self) -> ClientApp:
        """Return the ClientApp; a node hosts partitions, or, with ``data`` in its node-config, one client's data."""
        app = ClientApp(mods=[guard])

        @app.query("clients")
        def clients(msg: Message, context: Context) -> Message:
            if "data" in context.node_config:
                return node_info_reply(msg, NodeInfo(class_names=tuple("abcdef")))
            config = context.node_config
            return node_info_reply(msg, NodeInfo(int(config["partition-id"]), int(config["num-partitions"])))

        @app.query("statistics")
        @per_client
        def statistics(msg: Message, context: Context, client_id: int | None) -> Message:
            client = int(context.node_config["data"]) if client_id is None else client_id
            if client in self.broken:
                raise self.broken[client]
            return statistics_reply(msg, read_statistics_request(msg).statistics(*self.part(client)), seconds=0.25)

        return app

    def local_grid(self, num_hosts: int | None = None, **options: object) -> LocalGrid:
        """Return a grid of SuperNodes that host the clients, or, without ``num_hosts``, are the clients."""
        if num_hosts is None:
            configs: list[dict[str, object]] = [{"data": client} for client in range(self.num_clients)]
        else:
            configs = [{"partition-id": host, "num-partitions": num_hosts} for host in range(num_hosts)]
        return LocalGrid(self.app(), configs, **options)  # type: ignore[arg-type]

    def client_grid(
        self, num_hosts: int = 3, *, grid: Mapping[str, object] | None = None, **options: int
    ) -> ClientGrid:
        """Return a grid of clients spread over SuperNodes; ``grid`` are the options of the inner one."""
        hosts = {client: FIRST_NODE_ID + client % num_hosts for client in range(self.num_clients)}
        return ClientGrid(self.local_grid(num_hosts, **(grid or {})), hosts, **options)


def run(strategy: StatisticsStrategy, grid: LocalGrid | ClientGrid) -> dict[str, bytes]:
    """Run a strategy to its end and return its arrays as bytes."""
    return {name: array.data for name, array in strategy.start(grid).arrays.items()}


def strategy_for(name: str, **options: object) -> StatisticsStrategy:
    """Return a strategy that does not wait and sends float64."""
    return STRATEGIES[name](NUM_CLASSES, **{"wire_dtype": "float64", "settle_seconds": 0.0} | options)


def silent(*positions: int) -> dict[int, Fault]:
    return dict.fromkeys(positions, Fault(silent=True))
