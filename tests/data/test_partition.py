"""Laws that every partitioner keeps, and what each one promises besides."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from fedstats_app.base.option import ConfigError
from fedstats_app.data import PARTITIONERS, Dataset, DatasetError, partition
from fedstats_app.settings.app_config import AppConfig
from tests.data.conftest import make_dataset

COVERING = ("iid", "dirichlet", "dirichlet-blocks", "natural-id", "domain", "fedcgs")
quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def split(dataset: Dataset, name: str, num_clients: int, **options: Any) -> list[np.ndarray]:
    return partition(dataset, partitioner=name, num_clients=num_clients, column="site", **options)


def six_sites(n: int, seed: int) -> Dataset:
    """Build n samples of 4 classes at 6 sites, all of which occur."""
    rng = np.random.default_rng(seed)
    site = rng.permutation(np.arange(n) % 6)
    return make_dataset(rng.permutation(np.arange(n) % 4), site=np.array([f"site {s}" for s in site]))


@pytest.mark.parametrize("name", sorted({*PARTITIONERS} - {"pathological"}))  # a library's, and slow
@quick
@given(n=st.integers(120, 300), seed=st.integers(0, 2**32 - 1))
def test_laws(name: str, n: int, seed: int) -> None:
    dataset = six_sites(n, seed)
    parts = split(dataset, name, 6, alpha=0.5, seed=seed)
    assert len(parts) == 6
    assert all(part.dtype == np.int64 and part.ndim == 1 and (np.diff(part) > 0).all() for part in parts)
    together = np.sort(np.concatenate(parts))
    assert (np.diff(together) > 0).all()  # disjoint
    assert together.min() >= 0 and together.max() < n
    if name in COVERING:
        assert len(together) == n
    if name in ("fedcof", "fedpac"):
        assert [len(part) for part in parts] == [n // 6] * 6
    for first, second in zip(parts, split(dataset, name, 6, alpha=0.5, seed=seed), strict=True):
        np.testing.assert_array_equal(first, second)


def counts_of(labels: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    """Count the samples of each client and class, ``(K, C)``."""
    return np.stack([np.bincount(labels[part], minlength=int(labels.max()) + 1) for part in parts])


def test_dirichlet_has_flwr_datasets_shares() -> None:
    """Both round the shares of one draw to whole samples, so they can differ by one sample of a class."""
    import datasets
    from flwr_datasets.partitioner import DirichletPartitioner

    labels = np.random.default_rng(0).choice([0, 1, 2, 4], 400)  # class 3 is absent, and draws no shares
    peer = DirichletPartitioner(20, "label", 0.1, min_partition_size=0, self_balancing=False, seed=3)
    peer.dataset = datasets.Dataset.from_dict({"label": labels})
    theirs = [np.array(peer.load_partition(k)["label"][:], dtype=np.int64) for k in range(20)]
    parts = partition(make_dataset(labels), partitioner="dirichlet", num_clients=20, alpha=0.1, seed=3)
    ours = counts_of(labels, parts)
    assert np.abs(ours - np.stack([np.bincount(labels, minlength=5) for labels in theirs])).max() <= 1
    assert ours[:, :3].max() > 20


def test_dirichlet_shuffles_each_class_and_blocks_keep_neighbours_together() -> None:
    """Copies of one image beside each other came to one client: FedCOF scored 64.5, and 50.3 on a shuffled split."""
    dataset = make_dataset(np.repeat(np.arange(3), 400))
    splits = {
        name: partition(dataset, partitioner=name, num_clients=5, alpha=10.0, seed=1)
        for name in ("dirichlet", "dirichlet-blocks")
    }
    together = {
        name: sum(int((np.diff(part) == 1).sum()) for part in parts) / len(dataset) for name, parts in splits.items()
    }
    assert together["dirichlet-blocks"] > 0.95 and together["dirichlet"] < 0.4
    assert [len(part) for part in splits["dirichlet"]] == [len(part) for part in splits["dirichlet-blocks"]]


def test_dirichlet_favours_no_client() -> None:
    """Every client has the same chances: its classes and samples, over seeds, do not depend on its place."""
    labels = np.repeat(np.arange(50), 20)
    dataset = make_dataset(labels)
    splits = [partition(dataset, partitioner="dirichlet", num_clients=25, seed=seed) for seed in range(40)]
    counts = np.stack([counts_of(labels, parts) for parts in splits])  # (seeds, K, C)
    classes, samples = (counts > 0).sum(axis=2).mean(axis=0), counts.sum(axis=2).mean(axis=0)  # (K,)
    # Four standard errors of a mean over 40 seeds.
    for client in (0, 1, 23, 24):
        assert abs(classes[client] - classes.mean()) < 4 * (counts > 0).sum(axis=2).std() / 40**0.5
        assert abs(samples[client] - 40) < 4 * counts.sum(axis=2).std() / 40**0.5


@quick
@given(st.lists(st.sampled_from(["b", "a", "d c", ""]), min_size=1, max_size=60))
def test_natural_ids_are_flwr_datasets_own(users: list[str]) -> None:
    import datasets
    from flwr_datasets.partitioner import NaturalIdPartitioner

    peer = NaturalIdPartitioner("user")
    peer.dataset = datasets.Dataset.from_dict({"user": users, "i": list(range(len(users)))})
    dataset = make_dataset(np.zeros(len(users)), user=np.array(users))
    parts = partition(dataset, partitioner="natural-id", num_clients=len(set(users)), column="user")
    assert len(parts) == peer.num_partitions
    for k, part in enumerate(parts):
        np.testing.assert_array_equal(part, peer.load_partition(k)["i"][:])


def test_domains_get_equal_numbers_of_clients() -> None:
    domain = np.repeat(["sketch", "art", "photo"], [50, 23, 77])
    dataset = make_dataset(np.zeros(150), domain=domain)
    parts = partition(dataset, partitioner="domain", num_clients=15, column="domain")
    assert [set(domain[part]) for part in parts] == [{"art"}] * 5 + [{"photo"}] * 5 + [{"sketch"}] * 5
    assert [len(part) for part in parts] == [5, 5, 5, 4, 4, 16, 16, 15, 15, 15, 10, 10, 10, 10, 10]
    with pytest.raises(DatasetError, match=r"has 3 values.*multiple of 3, or 0 for one each, got 100"):
        partition(dataset, partitioner="domain", num_clients=100, column="domain")


@pytest.mark.parametrize("classes_per_client", [1, 2, 5])
def test_pathological_gives_each_client_that_many_classes(classes_per_client: int) -> None:
    dataset = make_dataset(np.repeat(np.arange(5), 40))
    parts = partition(dataset, partitioner="pathological", num_clients=10, classes_per_client=classes_per_client)
    assert [len(np.unique(dataset.labels[part])) for part in parts] == [classes_per_client] * 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitioner": "random"}, "must be one of iid, dirichlet, .*got 'random'"),
        ({"num_clients": 41}, "1 to 40 clients, got 41"),
        ({"alpha": 0.0}, "alpha must be above 0"),
        ({"alpha": float("nan")}, "alpha must be above 0"),
        ({"partitioner": "natural-id"}, r"one of \['gaps', 'user'\], got ''"),
        ({"partitioner": "domain", "column": "nope"}, r"one of \['gaps', 'user'\], got 'nope'"),
        ({"partitioner": "natural-id", "column": "gaps"}, "10 of 40 samples have no 'gaps'"),
        ({"partitioner": "pathological", "classes_per_client": 5}, "finds no split"),
        ({"partitioner": "pathological", "num_clients": 40, "classes_per_client": 4}, "no split.*more partitions"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, Any], message: str) -> None:
    gaps = np.array([None, "a", "b", "c"] * 10, dtype=object)
    dataset = make_dataset(np.arange(40) % 4, user=np.arange(40), gaps=gaps)
    with pytest.raises(DatasetError, match=message):
        partition(dataset, **{"partitioner": "dirichlet", "num_clients": 4, **options})


FLWR = {  # all of flwr-datasets that divide samples by literals, with as many clients as they make of six sites
    "ShardPartitioner(partition_by='label', num_shards_per_partition=2)": 6,
    "IidPartitioner()": 6,
    "LinearPartitioner(num_partitions=6)": 6,
    "SizePartitioner(partition_sizes=[50, 70])": 2,
    "NaturalIdPartitioner(partition_by='site')": 6,
    "GroupedNaturalIdPartitioner(partition_by='site', group_size=2)": 3,
    "DirichletPartitioner(partition_by='label', alpha=0.5, min_partition_size=1)": 6,
    "InnerDirichletPartitioner(partition_sizes=[30, 30], partition_by='label', alpha=0.3)": 2,
    "PathologicalPartitioner(partition_by='label', num_classes_per_partition=2)": 6,
    "DistributionPartitioner(distribution_array=[[1, 2], [1, 2], [1, 2], [1, 2]], num_partitions=4, "
    "num_unique_labels_per_partition=2, partition_by='label', preassigned_num_samples_per_label=1)": 4,
}


@pytest.mark.parametrize("written", FLWR)
def test_any_partitioner_of_flwr_datasets_is_taken(written: str) -> None:
    dataset = six_sites(240, 0)
    parts = split(dataset, f"flwr:{written}", FLWR[written], seed=3)
    together = np.concatenate(parts)
    assert len(parts) == FLWR[written] and len(set(together.tolist())) == len(together) >= 60
    assert 0 <= together.min() and together.max() < 240
    for first, second in zip(parts, split(dataset, f"flwr:{written}", FLWR[written], seed=3), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("ShardPartitoner()", "no such partitioner of samples in flwr-datasets; there are ContinuousPartitioner, Diri"),
        ("VerticalEvenPartitioner(num_partitions=2)", "no such partitioner of samples"),
        ("Partitioner()", "no such partitioner of samples"),
        ("IidPartitioner(parts=3)", "unexpected keyword argument 'parts'"),
        ("IidPartitioner(num_partitions=4)", "makes 4 clients, num-clients is 6"),
        ("ShardPartitioner(partition_by='user')", "no such column: 'user'; there are label, site"),
        ("ShardPartitioner()", "finds no split: .*partition_by"),
        ("DirichletPartitioner(partition_by='label', alpha='x')", "finds no split"),
    ],
)
def test_what_flwr_datasets_cannot_split_is_said(written: str, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        split(six_sites(240, 0), f"flwr:{written}", 6)


def test_what_is_no_call_with_literals_is_refused_with_the_run_config() -> None:
    calls = ["Iid(3)", "a.Iid()", "Iid(n=print())", "Iid(**{'n': 3})", "Iid(n=", "Iid(n=x)", f"Iid(n=[{'1,' * 9999}])"]
    for written in ("ShardPartitioner", "", "(" * 500, *calls):
        with pytest.raises(ConfigError, match=r"partitioner: must be flwr:NAME\(argument=value"):
            AppConfig.from_run_config({"partitioner": f"flwr:{written}"})
