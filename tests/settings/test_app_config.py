"""Run-config and node-config: defaults that agree with pyproject.toml, and every problem reported at once."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.backbones.backbone_options import BACKBONES
from fedstats_app.backbones.names import is_text_backbone
from fedstats_app.base.option import ConfigError, flattened
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from research.settings_page import options_of_a_node, options_of_a_run, page, with_run_config

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def declared() -> dict[str, object]:
    return flattened(tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]["config"])


def test_pyproject_declares_exactly_the_keys_and_defaults() -> None:
    assert AppConfig().to_run_config() == declared()


def test_pyproject_and_the_reference_page_are_made_from_the_records() -> None:
    wrong = "run: python -m research.settings_page --write"
    text = PYPROJECT.read_text()
    assert with_run_config(text) == text, wrong
    assert (PYPROJECT.parent / "docs" / "settings.md").read_text() == page(), wrong
    keys = [one for group in AppConfig().groups for one in type(group).keys().values()]
    assert [one.name for one in keys if not one.metadata["sentence"]] == []


def test_there_are_few_options_and_each_is_a_key() -> None:
    """An issue that adds an option raises the number."""
    assert options_of_a_run() == AppConfig().to_run_config().keys()
    assert len(options_of_a_run()) <= 98 and len(options_of_a_node()) <= 32


def test_a_tables_keys_may_be_nested_dotted_or_keyword_arguments() -> None:
    dotted = AppConfig.from_run_config({"fedmezo.num-z": 2, "partition.flips": "random", "seed": 1})
    assert AppConfig.from_run_config({"fedmezo": {"num-z": 2}, "partition": {"flips": "random"}, "seed": 1}) == dotted
    assert AppConfig.of(fedmezo={"num_z": 2}, partition={"flips": "random"}, seed=1) == dotted
    assert AppConfig.from_run_config(dotted.to_run_config()) == dotted != AppConfig()


def test_all_problems_are_reported_together() -> None:
    wrong = {
        "methd": ("fed3r", "methd: no such key; did you mean method?"),
        "fedcof-shrinkag": (1, "fedcof-shrinkag: no such key; did you mean fedcof.shrinkage?"),
        "proximal-mu": (1, "proximal-mu: no such key; did you mean training.proximal-mu?"),
        "fed3r.ridge-lambda": (-1, 'ridge-lambda: must be a number in [0, inf) or "auto", got -1'),
        "num-clients": (2.5, "num-clients: must be a whole number from 0 to 1000000, got 2.5"),
        "partitioner": ("dirichlett", "did you mean dirichlet?"),
        "plots": ("yes", "plots: must be true or false, got 'yes'"),
        "fedcof.shrinkage": ("0.1x", "fedcof.shrinkage: must be"),
        "seed": (True, "seed: must be a whole number"),
        "min-clients": (0, "min-clients: must be"),
    }
    with pytest.raises(ConfigError) as caught:
        AppConfig.from_run_config({key: value for key, (value, _) in wrong.items()})
    assert "10 problem(s)" in str(caught.value) and all(hint in str(caught.value) for _, hint in wrong.values())


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("fed3r.ridge-lambda", "auto", "auto"),
        ("fed3r.ridge-lambda", "0.01", 0.01),
        ("fed3r.ridge-lambda", 1, 1.0),
        ("fedcof.shrinkage", "inf", float("inf")),
        ("fedcgs.shrinkage", 0, 0.0),
    ],
)
def test_numbers_may_be_numbers_or_text(key: str, value: object, expected: object) -> None:
    assert AppConfig.from_run_config({key: value}).to_run_config()[key] == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("fed3r.ridge-lambda", value) for value in ("nan", "inf", True)),
        *(("method", f"fed3r@kernel-width={value}") for value in ("0", "much")),
        ("fedcgs.shrinkage", "inf"),
        ("dirichlet-alpha", 0),
        ("wire-dtype", "int4"),
        *(("method", value) for value in ("fedncm,fedncm", "fedavg", "")),
        ("wait-timeout", -1),
        *(("dataset", value) for value in ("foldr:/x", "folder:x", "hub:")),
        ("test-dataset", "parquet:relative"),
        *(("device", value) for value in ("gpu", "cuda:x")),
        *(("backbone", value) for value in ("resnet19", "timm:")),
        *(("output-dir", value) for value in ("runs", "./runs")),
        ("extend", "runs/1"),
        ("min-class-count", -1),
        ("save-statistics", "no"),
    ],
)
def test_values_out_of_range_are_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        AppConfig.from_run_config({key: value})


def test_methods_are_those_asked_for_in_their_order() -> None:
    assert AppConfig.from_run_config({"method": "fedcof, fedncm"}).methods == ("fedcof", "fedncm")
    assert AppConfig().methods == ("fedncm", "fed3r", "fedcof", "fedcgs", "fedroot")


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(sorted(declared())), st.one_of(st.text(max_size=8), st.integers(), st.floats())))
def test_anything_gives_a_configuration_or_a_config_error(values: dict[str, object]) -> None:
    try:
        config = AppConfig.from_run_config(values)
    except ConfigError:
        return
    assert AppConfig.from_run_config(config.to_run_config()) == config


def test_node_config_names_data_or_a_partition() -> None:
    assert NodeConfig.from_node_config({"partition-id": 3, "num-partitions": 7}) == NodeConfig("", 3, 7)
    own = NodeConfig.from_node_config({"data-path": "/data", "partition-id": 3, "num-partitions": 7})
    assert own == NodeConfig("/data")  # data-path wins


def test_the_backbones_are_those_that_can_be_loaded() -> None:
    from fedstats_app.backbones.registry import _ARCHITECTURES

    assert {*_ARCHITECTURES, "all-MiniLM-L6-v2", "tiny-text"} == set(BACKBONES)
    for name in ("random:tiny", "random:resnet18", "timm:resnet10t"):
        assert AppConfig.from_run_config({"backbone": name}).backbone.backbone == name


def test_what_an_owner_allows_is_read_from_node_config() -> None:
    node = NodeConfig.from_node_config(
        {"data-path": "/d", "min-class-count": 8, "min-gram-samples": 100, "allowed-methods": "fedncm, fedcof"}
    )
    assert (node.min_class_count, node.min_gram_samples) == (8, 100) and node.allowed_methods == ("fedncm", "fedcof")
    assert NodeConfig.from_node_config({"data-path": "/d", "allowed-methods": "all"}).allowed_methods is None


@pytest.mark.parametrize(
    ("node", "asked", "floor"),
    [
        ({"data-path": "/d"}, 0, 5),
        ({"data-path": "/d"}, 3, 5),
        ({"data-path": "/d"}, 9, 9),
        ({"data-path": "/d", "min-class-count": 0}, 0, 0),
        ({"data-path": "/d", "min-class-count": 20}, 3, 20),
        ({"partition-id": 0, "num-partitions": 1}, 0, 0),
        ({"partition-id": 0, "num-partitions": 1}, 4, 4),
        ({"partition-id": 0, "num-partitions": 1, "min-class-count": 6}, 4, 6),
    ],
)
def test_the_floor_is_the_owners_and_a_run_can_only_raise_it(node: dict[str, object], asked: int, floor: int) -> None:
    assert NodeConfig.from_node_config(node).class_floor(asked) == floor


@pytest.mark.parametrize(
    ("node_config", "message"),
    [
        ({}, "must name data-path"),
        ({"partition-id": 1}, "must name data-path"),
        ({"data-path": "/d", "min-class-cont": 100}, "min-class-cont: no such key; did you mean min-class-count"),
        ({"data-path": "/d", "colour": "red"}, "node-config: colour: no such key$"),
        ({"partition-id": "1", "num-partitions": 2}, "partition-id: must be a whole number"),
        *(
            ({"data-path": "/d", key: value}, f"node-config: {key}: must be")
            for key, values in (
                ("min-class-count", (-1, "5", True)),
                ("min-gram-samples", (1.5,)),
                ("allowed-methods", ("fedavg", "", "fedncm,fedncm")),
            )
            for value in values
        ),
    ],
)
def test_an_owners_mistake_is_an_error_and_no_silent_default(node_config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NodeConfig.from_node_config(node_config)


def test_what_is_for_texts_only_is_refused_for_images_and_the_other_way_round() -> None:
    with pytest.raises(ConfigError, match="text-template: is for text backbones"):
        AppConfig.from_run_config({"text-template": "{text}!"})
    texts = {"backbone": "sentence:some/model", "training.flip": True, "backbone-pooling": "pooled"}
    with pytest.raises(ConfigError, match="2 problem") as caught:
        AppConfig.from_run_config(texts)
    assert "flip: is for images" in str(caught.value) and "must be auto, mean or cls with" in str(caught.value)


@pytest.mark.parametrize("name", [*BACKBONES, "sentence:a", "transformers:a", "random:tiny-text", "timm:a"])
def test_the_configuration_and_the_backbones_agree_what_takes_texts(name: str) -> None:
    assert AppConfig.of(backbone=name).backbone.takes_text == is_text_backbone(name)


def test_networks_that_a_folder_describes_have_their_own_size() -> None:
    def size(**values: object) -> int:
        return AppConfig.of(**values).backbone_for(own_data=False).input_size

    assert size() == 64 and size(backbone="timm:resnet18") == 64
    for name in ("timm:hf-hub:MahmoodLab/UNI", "random:timm:local-dir:/models/uni", "vision:owkin/phikon"):
        assert size(backbone=name) == 0
    assert size(backbone="timm:vit_small_patch14_dinov2", backbone_arguments="img_size=224") == 0


def test_arguments_and_words_are_written_in_one_way() -> None:
    given = AppConfig.of(backbone="timm:x", backbone_arguments="b=true, a=2", backbone_pooling="cls+mean").backbone
    assert (given.backbone_arguments, given.backbone_pooling) == ("a=2,b=true", "cls+mean")
    words = {"start-head": "label-words", "label-words": "bad, good", "text-template": "{text} {mask}"}
    assert AppConfig.from_run_config({**TEXT, **words}).tuning.words == ("bad", "good")


TEXT = {"backbone": "transformers:some/model", "fine-tune": "probe"}
TIMM = {"backbone": "timm:x"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"method": "fedcof@between-class=only"}, "fedcof.between-class: only needs a number for fedcof.shrinkage"),
        (
            {"method": "fedroot@ridge-lambda=1,fedroot@rank=full"},
            "one run asks for one rank of the scatter's factors, got fedroot@ridge-lambda=1: s",
        ),
        ({"partitioner": "natural-id"}, "partition-column: partitioner 'natural-id' needs one"),
        ({**TEXT, "label-words": "bad,good"}, "label-words: need a text-template"),
        (
            {**TEXT, "start-head": "label-words", "text-template": "{text} {mask}"},
            "start-head: label-words needs the words",
        ),
        ({"label-words": "bad,,good"}, "label-words: must be different words"),
        ({"label-words": "bad,bad"}, "label-words: must be different words"),
        ({"text-template": "It was {mask}."}, r"text-template: must hold \{text\} once"),
        ({**TIMM, "backbone-arguments": "img_size"}, "backbone-arguments: must be key=value pairs"),
        ({**TIMM, "backbone-pooling": "max"}, r"backbone-pooling: must be one of auto, .*cls\+mean"),
        ({"backbone": "resnet18", "backbone-arguments": "a=1"}, "backbone-arguments: are for timm:NAME"),
        (
            {"backbone": "resnet18", "backbone-pooling": "cls"},
            "backbone-pooling: is for timm:NAME, vision:NAME and texts",
        ),
        ({"backbone": "timm:local-dir:models/uni"}, "absolute path after timm:local-dir:"),
        ({"backbone": "timm:hf-hub:"}, "a model of the hub after timm:hf-hub:"),
    ],
)
def test_what_excludes_or_needs_another_key_is_refused(given: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        AppConfig.from_run_config(given)
