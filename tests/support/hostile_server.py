"""A server that sends what it likes to one node with data of its own, and what it could hope to learn of it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedstats_app import client_app
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.client.site import ClientSplit, Site
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.testing import FIRST_NODE_ID, LocalGrid
from fedstats_app.training.samples import TensorSamples
from tests.support.simulation import site_folder

CLASSES = ("ant", "bee")


@dataclass
class Victim:
    """A node with a folder of two classes under its owner's rules; each image has features of dimension 32."""

    path: Path
    rules: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config = AppConfig.of(backbone="random:tiny", input_size=16, **self.settings)
        self.state = Path(tempfile.mkdtemp(dir=self.path))
        self.node_config = {"data-path": str(self.path / "images"), "state-dir": str(self.state), **self.rules}
        self.site = Site(self.config, NodeConfig.from_node_config(self.node_config))

    @classmethod
    def of(cls, path: Path, images: int = 40, few: int | None = None, **rules: object) -> Victim:
        """Make its images, as many of each class, or fewer of the second."""
        site_folder(path / "images", CLASSES[:1], seed=1, images=images)
        site_folder(path / "images", CLASSES[1:], seed=2, images=images if few is None else few)
        return cls(path, {key.replace("_", "-"): value for key, value in rules.items()})

    @property
    def backbone(self) -> Backbone:
        return loaded_backbone(self.config.backbone_for(own_data=True))

    def ask(self, content: RecordDict, kind: str) -> Message:
        """Return the node's answer to a message of a type."""
        grid = LocalGrid(client_app.app, [self.node_config], self.config.to_run_config())
        [reply] = grid.send_and_receive([Message(content, dst_node_id=FIRST_NODE_ID, message_type=kind)])
        return reply

    def hold_out(self, ants: int, bees: int, class_names: tuple[str, ...] = CLASSES) -> ClientSplit:
        """Return a split with these numbers of held-out samples, as if the seed had drawn it."""
        whole = self.site.split(class_names, holdout=0.0, seed=0)
        labels = whole.dataset.labels[whole.kept]
        held_out = np.concatenate([whole.kept[labels == c][:n] for c, n in enumerate((ants, bees))])
        return ClientSplit(whole.dataset, np.setdiff1d(whole.kept, held_out), held_out)

    def features(self, split: ClientSplit) -> tuple[Tensor, Tensor]:
        """Return the truth: (n, 32) features and (n,) labels of what is held out."""
        blocks = FeatureReader(self.backbone).blocks(split.dataset, split.held_out)
        labels = torch.from_numpy(split.dataset.labels[split.held_out].copy())
        return torch.cat([block for block, _ in blocks]), labels

    def samples(self, split: ClientSplit) -> TensorSamples:
        """Return the held-out samples as training takes them."""
        return TensorSamples(*self.features(split))
