"""The whole app in this process: ServerApp and ClientApp over a grid without Ray, with the tiny backbone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Context, RecordDict
from PIL import Image

from fedstats_app import client_app, server_app
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.base.files import read_json_lines
from fedstats_app.base.option import flattened
from fedstats_app.data import load_dataset
from fedstats_app.data.clients import partitions, training_set
from fedstats_app.report.classifier import Classifier
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics, StatisticsSpec
from fedstats_app.testing import App, Fault, LocalGrid


def simulate(
    tmp_path: Path,
    *,
    nodes: int = 2,
    node_configs: list[Mapping[str, object]] | None = None,
    faults: Mapping[int, Fault] | None = None,
    shuffle_seed: int | None = None,
    app: App = client_app.app,
    **settings: object,
) -> Path:
    """Run the app, by default on the built-in sample, and return the run folder."""
    run_config: dict[str, Any] = {
        **AppConfig().to_run_config(),
        "backbone": "random:tiny",
        "input-size": 16,
        "num-clients": 10,
        "plots": False,
        "output-dir": str(tmp_path / "runs"),
        "cache-dir": str(tmp_path.parent / "cache"),
        "settle-seconds": 0.01,
        "wait-timeout": 5.0,
        **{name.replace("_", "-"): value for name, value in flattened(settings).items()},
    }
    configs = node_configs or [{"partition-id": node, "num-partitions": nodes} for node in range(nodes)]
    grid = LocalGrid(app, configs, run_config, faults=faults or {}, shuffle_seed=shuffle_seed)
    before = set((tmp_path / "runs").glob("*"))
    server_app.app(grid, Context(7, 1, {}, RecordDict(), run_config))
    made = set((tmp_path / "runs").glob("*")) - before
    (folder,) = made or [Path(run_config["resume"])]
    return folder


class Killed(BaseException):
    """Stands for SIGKILL: nothing that comes after it runs."""


def killed(tmp_path: Path, **settings: Any) -> Path:
    """Run the app until something raises :class:`Killed`, and return the folder that is left."""
    with pytest.raises(Killed):
        simulate(tmp_path, **settings)
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


def rounds(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the rounds of a training, such as "fedcof-probe"."""
    return [line for line in read_json_lines(folder / "rounds.jsonl") if f"{line['start']}-{line['stage']}" == name]


def head_bytes(folder: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted((folder / "heads").iterdir())}


def read_json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def clients(folder: Path) -> list[dict[str, Any]]:
    return read_json_lines(folder / "clients.jsonl")


def central(config: AppConfig, kept: list[int]) -> tuple[FeatureStatistics, ClassMeanRows]:
    """Return statistics and rows of some clients, computed directly."""
    dataset = training_set(config.data)
    reader = FeatureReader(loaded_backbone(config.backbone_for(own_data=False)))
    parts, rows = partitions(config.data, config.partition, config.run.seed), []
    stats = FeatureStatistics.zeros(10, 32)
    for client in kept:
        if not len(parts[client]):
            continue
        features = torch.cat([block for block, _ in reader.blocks(dataset, parts[client])])
        labels = torch.from_numpy(dataset.labels[parts[client]])
        stats = stats + FeatureStatistics.from_features(features, labels, 10)
        rows.append(StatisticsSpec().from_features(features, labels, 10).rows)
    return stats, ClassMeanRows.concatenate(rows)


def share_right(classifier: Classifier, number: int, dataset: str = "builtin") -> float:
    """Return the share of the first test samples whose class a classifier says."""
    test = load_dataset(dataset, "test")
    assert test is not None
    said = zip(classifier.predict([test.sample(index) for index in range(number)]), test.labels[:number], strict=True)
    return float(np.mean([name == test.class_names[label] for name, label in said]))


def site_folder(root: Path, classes: tuple[str, ...], *, seed: int, images: int = 8) -> str:
    """Make a folder of images in which a class has a colour of its own."""
    draw = np.random.default_rng(seed)
    for name in classes:
        (root / name).mkdir(parents=True)
        colour = np.random.default_rng(abs(hash_of(name))).integers(0, 256, 3)
        for number in range(images):
            noise = draw.integers(-40, 40, (16, 16, 3))
            Image.fromarray(np.clip(colour + noise, 0, 255).astype(np.uint8)).save(root / name / f"{number}.png")
    return str(root)


def nodes_of(
    root: Path, names: str, classes: tuple[str, ...], *, images: int = 8, **options: object
) -> list[Mapping[str, object]]:
    """Return the node-configs of sites of one letter each, with folders of their own and the same classes."""
    more = {key.replace("_", "-"): value for key, value in options.items()}
    paths = [site_folder(root / name, classes, seed=seed, images=images) for seed, name in enumerate(names)]
    return [{"data-path": path, **more} for path in paths]


def hash_of(name: str) -> int:
    return sum(ord(letter) * 31**position for position, letter in enumerate(name))


def with_keys(root: Path, nodes: Sequence[dict[str, object]], *, known: int | None = None) -> None:
    """Give each node a key of its own, and a list of those of the first ``known`` nodes, by default of all."""
    keys = [Ed25519PrivateKey.generate() for _ in nodes]
    lines = [f"site {number}: {key.public_key().public_bytes_raw().hex()}" for number, key in enumerate(keys)]
    (root / "peers").write_text("\n".join(lines[:known]))
    for number, (key, node) in enumerate(zip(keys, nodes, strict=True)):
        (root / f"{number}.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        node |= {"secure-key": str(root / f"{number}.pem"), "secure-peers": str(root / "peers")}
