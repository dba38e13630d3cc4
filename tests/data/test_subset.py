"""Data sets made of another."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageOps

from fedstats_app.base.option import ConfigError
from fedstats_app.data import DatasetError, load_dataset
from fedstats_app.data import clients as client_data
from fedstats_app.data.clients import partitions, training_set
from fedstats_app.data.subset import at_most_per_class, flipped, only_classes, with_mirror_images, without_domain
from fedstats_app.settings.app_config import AppConfig
from tests.data.conftest import make_dataset
from tests.data.test_folder_layout import tree
from tests.support.simulation import read_json, simulate, site_folder

LABELS = np.array([2, 0, 1, 0, 2, 2, 1, 0])


@pytest.mark.parametrize(
    ("wanted", "names", "indices"),
    [
        ("", ("class 0", "class 1", "class 2"), range(8)),
        ("2", ("class 0", "class 1"), (1, 2, 3, 6, 7)),
        ("class 2, class 0", ("class 0", "class 2"), (0, 1, 3, 4, 5, 7)),
    ],
)
def test_classes_are_taken_by_number_or_name(wanted: str, names: tuple[str, ...], indices: list[int]) -> None:
    whole = make_dataset(LABELS, user=np.arange(8))
    some = only_classes(whole, wanted)
    assert some.class_names == names
    assert [some.sample_name(i) for i in range(len(some))] == [whole.sample_name(i) for i in indices]
    assert [some.class_names[c] for c in some.labels] == [whole.class_names[whole.labels[i]] for i in indices]
    np.testing.assert_array_equal(some.columns["user"], list(indices))


@pytest.mark.parametrize("wanted", ["0", "4", "class 7", "class 0,nothing"])
def test_classes_that_are_not_there_are_an_error(wanted: str) -> None:
    with pytest.raises(DatasetError, match="classes must be"):
        only_classes(make_dataset(LABELS), wanted)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 12), st.integers(0, 9))
def test_at_most_so_many_of_a_class(labels: list[int], number: int, seed: int) -> None:
    values = np.array(labels)
    chosen = at_most_per_class(values, number, seed)
    np.testing.assert_array_equal(chosen, np.unique(chosen))
    expected = np.minimum(np.bincount(values, minlength=5), number)
    np.testing.assert_array_equal(np.bincount(values[chosen], minlength=5), expected)
    assert set(chosen) <= set(at_most_per_class(values, number + 1, seed))
    np.testing.assert_array_equal(chosen, at_most_per_class(values, number, seed))
    zeros = np.zeros(1000, int)
    assert set(at_most_per_class(zeros, 10, seed)) != set(at_most_per_class(zeros, 10, seed + 1))


def test_a_domain_is_left_out() -> None:
    whole = make_dataset(LABELS, centre=np.array([3, 4, 3, 5, 3, 4, 5, 5]))
    rest, out = without_domain(whole, "centre=3")
    assert (len(rest), len(out)) == (5, 3) and rest.class_names == out.class_names == whole.class_names
    assert [out.sample_name(i) for i in range(3)] == ["plain/0", "plain/2", "plain/4"]
    for wrong, reason in [("center=3", r"one of the columns \['centre'\]"), ("centre=9", r"has \['3', '4', '5'\]")]:
        with pytest.raises(DatasetError, match=reason):
            without_domain(whole, wrong)


@pytest.fixture
def domains(tmp_path: Path) -> str:
    names = [f"{domain}/{name}" for domain in ("art", "photo", "sketch") for name in ("cat", "dog", "owl")]
    return f"folder:{tree(tmp_path, *names, images=4)}"


def test_a_run_leaves_a_domain_out_and_tests_on_it(domains: str) -> None:
    config = AppConfig.of(
        dataset=domains, folder_levels="domain/class", left_out_domain="domain=sketch", classes="cat,owl",
        partitioner="natural-id", partition_column="domain", num_clients=0,
        partition={"samples_per_class": 6},
    )  # fmt: skip
    train, test = training_set(config.data), client_data.test_split(config.data.dataset, config.data)
    assert test is not None and train.class_names == test.class_names == ("cat", "owl")
    assert (len(train), set(train.columns["domain"])) == (16, {"art", "photo"})
    assert (len(test), set(test.columns["domain"])) == (8, {"sketch"})
    parts = partitions(config.data, config.partition, 0)
    assert len(parts) == 2
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used) and np.bincount(train.labels[used]).max() <= 6
    for part, domain in zip(parts, ("art", "photo"), strict=True):
        assert set(train.columns["domain"][part]) == {domain}


def test_clients_have_the_names_of_their_domains_and_numbers_where_they_share_one(domains: str) -> None:
    def names(num_clients: int, **settings: str) -> list[str]:
        config = AppConfig.of(dataset=domains, folder_levels="domain/class", num_clients=num_clients, **settings)
        return client_data.client_names(config.data, config.partition, config.run.seed)

    by_domain = {"partitioner": "domain", "partition_column": "domain"}
    assert names(3, **by_domain) == ["art", "photo", "sketch"]
    assert names(6, **by_domain) == ["art 1", "art 2", "photo 1", "photo 2", "sketch 1", "sketch 2"] and names(4) == []


def test_test_data_may_be_a_folder_of_classes(tmp_path: Path) -> None:
    tree(tmp_path, "Training/cat", "Training/dog", "Other/cat", "Other/dog", "split/train/cat", images=3)
    paths = {name: f"folder:{tmp_path / name}" for name in ("Training", "Other", "split")}

    def found(test: str) -> int | None:
        split = client_data.test_split(test, AppConfig.of(dataset=paths["Training"], test_dataset=test).data)
        return None if split is None else len(split)

    assert found(paths["Other"]) == 6
    # Never the training data, whether of this run or of a data set that is divided.
    assert found(paths["Training"]) is None and found(paths["split"]) is None


def test_the_second_half_are_the_mirror_images_of_the_first() -> None:
    dataset = load_dataset("builtin", "train").subset(np.arange(12))
    both = with_mirror_images(dataset)
    assert len(both) == 24 and both.fingerprint != dataset.fingerprint
    assert both.labels.tolist() == dataset.labels.tolist() * 2
    for index in range(12):
        assert both.sample(index).tobytes() == dataset.sample(index).tobytes()  # type: ignore[union-attr]
        mirrored = ImageOps.mirror(dataset.sample(index))  # type: ignore[arg-type]
        assert both.sample(12 + index).tobytes() == mirrored.tobytes()  # type: ignore[union-attr]
    assert both.sample_name(12) == f"{dataset.sample_name(0)} (mirrored)"


@given(st.integers(1, 200), st.integers(0, 5), st.data())
def test_which_are_mirrored_is_the_seeds_business_whoever_has_them(number: int, seed: int, data: st.DataObject) -> None:
    everything = flipped(np.arange(number), number, "random", seed)
    mine = np.array(data.draw(st.lists(st.integers(0, number - 1), unique=True)), dtype=np.int64)
    assert flipped(mine, number, "random", seed).tolist() == everything[mine].tolist()
    assert (everything % number).tolist() == list(range(number))
    assert flipped(mine, number, "both", seed).tolist() == [*mine, *(mine + number)]
    assert flipped(mine, number, "none", seed) is mine


def test_runs_train_on_them_and_neither_test_nor_hold_out_any(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": "fedncm", "wire_dtype": "float32"}

    def results(flips: str) -> dict[str, Any]:
        settings.update(partition={"samples_per_class": 50, "flips": flips})
        return read_json(simulate(tmp_path / flips, **settings), "results.json")  # type: ignore[no-any-return]

    random, both = results("random"), results("both")
    assert [one["methods"]["fedncm"]["num_examples"] for one in (random, both)] == [500, 1000]
    assert {one["num_test_examples"] for one in (random, both)} == {250}


def test_texts_and_nodes_with_data_of_their_own_have_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"partition.flips: are for images, got 'both' with backbone 'tiny-text'"):
        AppConfig.of(partitioner="dirichlet", partition={"flips": "both"}, backbone="tiny-text")
    nodes = [{"data-path": site_folder(tmp_path / name, ("ant", "bee"), seed=1, images=12)} for name in "ab"]
    with pytest.raises(ValueError, match="training-flips: for simulations only"):
        simulate(
            tmp_path / "run",
            node_configs=nodes,
            method="fedncm",
            partitioner="dirichlet",
            partition={"flips": "random"},
        )
