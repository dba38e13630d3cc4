"""What the clients of a simulation are called."""

from __future__ import annotations

from pathlib import Path

from fedstats_app.data.clients import client_names
from fedstats_app.settings.app_config import AppConfig
from tests.support.simulation import site_folder


def names_of(folder: Path, **settings: object) -> list[str]:
    config = AppConfig.of(dataset=f"folder:{folder}", folder_levels="domain/class", **settings)
    return client_names(config.data, config.partition, config.run.seed)


def test_clients_have_the_names_of_their_domains_and_numbers_where_they_share_one(tmp_path: Path) -> None:
    for seed, domain in enumerate(("art", "photo")):
        site_folder(tmp_path / domain, ("ant", "bee"), seed=seed, images=8)
    by_domain = {"partitioner": "domain", "partition_column": "domain"}
    assert names_of(tmp_path, num_clients=2, **by_domain) == ["art", "photo"]
    assert names_of(tmp_path, num_clients=4, **by_domain) == ["art 1", "art 2", "photo 1", "photo 2"]
    assert names_of(tmp_path, num_clients=4) == []
