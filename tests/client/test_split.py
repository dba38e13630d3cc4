"""Which samples of a client may be used under its owner's policy."""

from pathlib import Path

import numpy as np
import pytest

from fedstats_app.client.site import Site
from fedstats_app.data import DatasetError
from fedstats_app.data.clients import listed_classes, own_dataset
from fedstats_app.methods import METHODS
from fedstats_app.privacy import NodePolicy
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.training.limits import RequestLimits
from tests.support.simulation import site_folder

CONFIG = AppConfig()


@pytest.fixture
def node(tmp_path: Path) -> NodeConfig:
    """Return a node with 12 ants, 3 bees, 9 cats, and a folder for dogs with none."""
    for label, images in (("ant", 12), ("bee", 3), ("cat", 9), ("dog", 0)):
        site_folder(tmp_path / "site", (label,), seed=images, images=images)
    return NodeConfig(str(tmp_path / "site"))


def without_floor(node: NodeConfig) -> NodeConfig:
    return NodeConfig(node.data_path, min_class_count=0)


def counts(split: object, part: str) -> dict[str, int]:
    dataset, indices = split.dataset, getattr(split, part)  # type: ignore[attr-defined]
    found = np.bincount(dataset.labels[indices], minlength=len(dataset.class_names))
    return {name: int(count) for name, count in zip(dataset.class_names, found, strict=True) if count}


def test_the_policy_is_the_nodes_with_its_floor_raised_by_the_run(node: NodeConfig) -> None:
    assert Site(CONFIG, node).policy == NodePolicy(5, None, limits=RequestLimits())
    assert Site(AppConfig.of(min_class_count=8), node).policy.min_class_count == 8
    assert Site(CONFIG, NodeConfig("", 0, 1)).policy == NodePolicy(0)
    strict = NodeConfig(node.data_path, min_gram_samples=9, allowed_methods=("fedncm",))
    assert Site(CONFIG, strict).policy == NodePolicy(5, 9, {"fedncm": METHODS["fedncm"].needs}, RequestLimits())


def told(node: NodeConfig, asked: int = 0) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    return listed_classes(own_dataset(node.data_path, CONFIG.data), node.class_floor(asked))


def test_names_are_told_of_classes_from_the_floor_on(node: NodeConfig) -> None:
    assert told(node) == (("ant", "cat"), None) and told(node, 10) == (("ant",), None)
    assert told(without_floor(node)) == (("ant", "bee", "cat", "dog"), None)


def test_a_class_that_was_not_told_of_is_left_out_before_anything(node: NodeConfig) -> None:
    split = Site(CONFIG, node).split(("ant", "cat", "eel"), holdout=0.0, seed=0)

    assert split.dataset.class_names == ("ant", "cat", "eel") and split.suppressed == ("bee",)
    assert counts(split, "kept") == {"ant": 12, "cat": 9} and counts(split, "held_out") == {}
    assert {split.dataset.sample_name(int(index)).split("/")[0] for index in split.kept} == {"ant", "cat"}


def test_an_own_class_that_is_not_hidden_must_be_among_the_federations(node: NodeConfig) -> None:
    with pytest.raises(DatasetError, match=r"not among the 1 allowed ones: \['cat'\]"):
        Site(CONFIG, node).split(("ant",), holdout=0.0, seed=0)


def test_a_class_counts_by_what_is_left_of_it_after_the_split(node: NodeConfig) -> None:
    """Of 21 allowed samples half are held out: a class with fewer than five left is not evaluated either."""
    for seed in range(20):
        split = Site(CONFIG, node).split(("ant", "cat"), holdout=0.5, seed=seed)
        whole = Site(CONFIG, without_floor(node)).split(("ant", "bee", "cat", "dog"), holdout=0.5, seed=seed)

        kept, held_out = counts(split, "kept"), counts(split, "held_out")
        assert all(count >= 5 for count in kept.values()) and set(held_out) <= set(kept)
        assert sum(held_out.values()) == 0 or sum(held_out.values()) >= 5
        assert set(split.suppressed) == {"bee", *({"ant", "cat"} - set(kept))}
        assert sum(counts(whole, "kept").values()) + sum(counts(whole, "held_out").values()) == 24
        assert whole.suppressed == ()


def test_in_a_simulation_all_samples_may_be_used_unless_the_run_asks_for_a_floor() -> None:
    simulated = NodeConfig("", 0, 1)
    config = AppConfig.of(num_clients=100)

    free = Site(config, simulated, 3).split((), holdout=0.0, seed=0)
    held = Site(AppConfig.of(num_clients=100, min_class_count=8), simulated, 3).split((), holdout=0.0, seed=0)

    few = {name for name, count in counts(free, "kept").items() if count < 8}
    assert few and free.suppressed == ()
    assert set(held.suppressed) == few
    assert counts(held, "kept") == {name: n for name, n in counts(free, "kept").items() if n >= 8}
