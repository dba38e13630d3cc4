"""What a node refuses, clients that lack samples, and a model of their own between rounds."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from PIL import Image

from fedstats_app.client import personal as client_personal
from fedstats_app.methods import METHODS
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.testing import instruction
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.start import random_head
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.wire import RejectedRequest
from fedstats_app.wire.personal import (
    PERSONAL_HEADS,
    PERSONALISE,
    PersonalMetrics,
    Prototypes,
    personal_content,
    personal_heads_content,
    read_personal_heads_reply,
    read_personal_reply,
)
from tests.support.simulation import site_folder

NAMES, DIM = ("ant", "bee"), 32
FED3R = METHODS["fed3r"].default().fixed({"ridge_lambda": 0.01})
EVERY = torch.ones(2, dtype=torch.bool)
REQUEST = TrainingRequest(2, "full", LocalOptions(epochs=1, batch_size=4), holdout=0.25, class_names=NAMES)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    for label, name in enumerate(NAMES):
        (root / name).mkdir()
        for number in range(8):
            Image.new("RGB", (16, 16), (100 * label + 9 * number, 90, 40)).save(root / name / f"{number}.png")
    return root


def context(site: Path, **node: object) -> Context:
    config = AppConfig.of(backbone="tiny", backbone_weights="random", input_size=16)
    node_config: Mapping[str, Any] = {
        "data-path": str(site),
        "train": True,
        "min-class-count": 0,
        "state-dir": str(site.parent / "state"),
        **{name.replace("_", "-"): value for name, value in node.items()},
    }
    return Context(1, 4, dict(node_config), RecordDict(), config.to_run_config())


def personalised(content: RecordDict, context: Context) -> PersonalMetrics:
    return read_personal_reply(client_personal.personalise(instruction(content, PERSONALISE), context, None))


def start(**changes: Any) -> RecordDict:
    head = random_head(2, DIM, 0)
    values: dict[str, Any] = {
        "request": REQUEST,
        "start": {"head.weight": head.weight, "head.bias": head.bias},
        "prototypes": None,
        "predictable": EVERY,
        **changes,
    }
    return personal_content(**values)


def heads_content(statistics: FeatureStatistics) -> RecordDict:
    return personal_heads_content(replace(REQUEST, tune="probe"), statistics, FED3R, (0.0, 1.0), wire_dtype="float64")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (start(request=replace(REQUEST, backbone_fingerprint="0" * 64)), "is not the server's, fingerprint"),
        (start(prototypes=Prototypes(torch.zeros(2, 5), EVERY, 1.0)), "must have 32 features, got 5"),
        (
            start(start={"head.weight": torch.zeros(2, DIM)}),
            "arrays: must be head.weight and head.bias, or none, got head.weight",
        ),
        (
            personal_content(replace(REQUEST, num_classes=3, class_names=()), {}, None, EVERY[[0, 0, 0]]),
            "data has 2 classes, the server's model 3",
        ),
    ],
)
def test_what_does_not_fit_this_node_is_refused(site: Path, content: RecordDict, reason: str) -> None:
    with pytest.raises(RejectedRequest, match=reason):
        personalised(content, context(site))


def test_a_client_with_nothing_takes_part_without_a_model(tmp_path: Path, site: Path) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
    (tmp_path / "ant" / "broken.png").write_bytes(b"no image")
    empty = context(tmp_path)
    alone = personalised(start(), empty)
    assert (alone.num_examples, alone.num_test, alone.forward_passes) == (0, 0, 0)
    statistics = FeatureStatistics.from_features(torch.rand(9, DIM), torch.arange(9) % 2, 2)
    heads = client_personal.personal_heads(instruction(heads_content(statistics), PERSONAL_HEADS), empty, None)
    metrics = read_personal_heads_reply(heads)
    assert (metrics.num_examples, metrics.num_test, metrics.mixing) == (0, 0, 0.0)


def test_absent_classes_are_not_predicted(tmp_path: Path) -> None:
    """A head that says "bee" to everything, where nobody is thought to have bees."""
    says_bee = {"head.weight": torch.zeros(2, DIM), "head.bias": torch.tensor([0.0, 9.0])}
    still = replace(REQUEST, options=LocalOptions(batch_size=8, learning_rate=1e-9))
    content = start(start=says_bee, predictable=torch.tensor([True, False]), request=still)
    for name, images in (("ant", 8), ("bee", 16)):
        site_folder(tmp_path / "site", (name,), seed=images, images=images)
    assert personalised(content, context(tmp_path / "site")).num_correct == 2


def test_few_test_samples_are_not_counted_under_a_floor(site: Path) -> None:
    larger = replace(REQUEST, options=LocalOptions(batch_size=8))
    reply = personalised(start(request=larger), context(site, min_class_count=6))
    assert reply.num_test == 0 and reply.num_correct == 0


def test_the_owner_says_where_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeConfig.from_node_config({"partition-id": 0, "num-partitions": 1, "state-dir": str(tmp_path / "own")})
    assert node.state_root(AppConfig().cache) == tmp_path / "own"
    config = AppConfig.from_run_config({"cache-dir": str(tmp_path / "cache"), "feature-cache": "off"})
    assert NodeConfig("", 0, 1).state_root(config.cache) == tmp_path / "cache" / "state"
    assert NodeConfig("/data", cache_dir="/node").state_root(config.cache) == Path("/node/state")
    # On a node with data of its own the run does not say where files go.
    monkeypatch.setenv("FEDSTATS_CACHE", str(tmp_path / "default"))
    assert NodeConfig("/data").state_root(config.cache) == tmp_path / "default" / "state"
