"""A small federation of images whose clients answer every message about personal models, in this process."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from PIL import Image

from fedstats_app import client_app
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.feature_reader import DatasetSamples
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.base.progress import Progress
from fedstats_app.client import personal as client_personal
from fedstats_app.data.clients import partitions, split_holdout, training_set
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.report.personal_result import PersonalResult
from fedstats_app.report.state import SolvedHead
from fedstats_app.server.personalisation import PersonalSession, run_approach
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.testing import FIRST_NODE_ID, LocalGrid
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire import guard, per_client

NUM_CLASSES, NUM_CLIENTS = 5, 5
Handler = Callable[[Message, Context, int | None], Message]


def image_folder(root: Path, *, per_class: int = 24) -> Path:
    """Make images in which a class has a colour of its own, near that of the next, under a lot of noise."""
    draw = np.random.default_rng(0)
    for label in range(NUM_CLASSES):
        folder = root / "train" / f"class {label}"
        folder.mkdir(parents=True)
        colour = np.array([90 + 20 * label, 128, 170 - 20 * label])
        for number in range(per_class):
            image = colour + draw.integers(-25, 25, 3) + draw.integers(-60, 60, (16, 16, 3))
            Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(folder / f"{number}.png")
    return root


def personal_app(**handlers: Handler) -> ClientApp:
    """Return a ClientApp with all handlers of personal models, some of them replaced."""
    app = ClientApp(mods=[guard])
    app.query("statistics")(client_app.answered_by("client.statistics", "statistics"))
    for name in ("personalise", "personal_heads"):
        app.train(name)(per_client(handlers.get(name, getattr(client_personal, name))))
    app.evaluate("personal")(per_client(handlers.get("evaluate_personal", client_personal.evaluate_personal)))
    return app


@dataclass
class Federation:
    """A finished first stage."""

    config: AppConfig
    local: LocalGrid
    grid: ClientGrid
    strategy: StatisticsStrategy
    backbone: Backbone

    def session(self, clients: Mapping[int, int] | None = None, say: Callable[[str], None] = print) -> PersonalSession:
        config, strategy, asked = self.config, self.strategy, self.strategy.request
        answered = {outcome.client: outcome.num_examples for outcome in strategy.outcomes if outcome.num_examples}
        return PersonalSession(
            options=config.personal,
            grid=self.grid,
            clients=answered if clients is None else clients,
            statistics_request=asked,
            heads={name: SolvedHead(head) for name, head in strategy.heads.items()},
            statistics=strategy.collection.collected(training_set(config.data).class_names, "1"),
            methods=config.configured_methods,
            training=TrainingRequest(
                asked.num_classes,
                options=config.local,
                seed=asked.seed,
                holdout=asked.holdout,
                backbone_fingerprint=asked.backbone_fingerprint,
            ),
            backbone=self.backbone.module,
            progress=Progress(say),
        )

    def run(self, **options: Any) -> dict[str, PersonalResult]:
        session = self.session(**options)
        made = [run_approach(session, approach) for approach in self.config.personal.approaches]
        return {name: result for results in made for name, result in results.items()}

    def split(self, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a client's samples for training and for testing."""
        config = self.config
        parts = partitions(config.data, config.partition, config.run.seed)
        fraction, seed = config.data.holdout_fraction, config.run.seed
        return split_holdout(training_set(config.data), parts[client], fraction, seed, client)

    def samples(self, client: int) -> tuple[DatasetSamples, DatasetSamples]:
        """Return the same as training takes them."""
        kept, test = (
            DatasetSamples(training_set(self.config.data), part, self.backbone) for part in self.split(client)
        )
        return kept, test


def federation(
    data: Path, state: Path, *, hosts: int = 1, app: ClientApp | None = None, **settings: object
) -> Federation:
    """Run the first stage over the images of :func:`image_folder`, with clients on some hosts."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    paths = {"dataset": f"folder:{data}", "cache_dir": str(data / "cache")}
    split = {"num_clients": NUM_CLIENTS, "partitioner": "fedpac", "holdout_fraction": 0.25}
    network = {"backbone": "random:tiny", "input_size": 16, "personal": {"epochs": 2}}
    config = AppConfig.of(**{**network, **paths, **split, **settings})
    nodes = [{"partition-id": host, "num-partitions": hosts, "state-dir": str(state)} for host in range(hosts)]
    local = LocalGrid(app or personal_app(), nodes, config.to_run_config(), shuffle_seed=hosts)
    clients = range(config.partition.num_clients)
    grid = ClientGrid(local, {client: FIRST_NODE_ID + client % hosts for client in clients})
    backbone = loaded_backbone(config.backbone_for(own_data=False))
    strategy = StatisticsStrategy(
        len(training_set(config.data).class_names),
        tuple(config.configured_methods.values()),
        feature_dim=backbone.feature_dim,
        seed=config.run.seed,
        wire_dtype=config.federation.wire_dtype,
        backbone_fingerprint=backbone.fingerprint,
        holdout=config.data.holdout_fraction,
    )
    strategy.start(grid)
    return Federation(config, local, grid, strategy, backbone)
