"""Samples that a simulation's clients train on are read once, and others' never taken for theirs."""

from pathlib import Path

import pytest
import torch

from fedstats_app.client import kept_samples, site
from fedstats_app.client.kept_samples import KeptSamples
from fedstats_app.training.samples import Samples, TensorSamples
from tests.support.simulation import simulate


@pytest.mark.parametrize("training", ["probe", "full", "fedmezo"])
def test_every_client_is_read_once_in_all_rounds(
    training: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, samples_of = list[object](), site.samples_of

    def noted(*arguments: object) -> Samples:
        read.append(arguments)
        return samples_of(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(site, "samples_of", noted)
    simulate(
        tmp_path, method="fedncm", num_clients=4, fine_tune=training, start_head="fedncm", num_server_rounds=3,
        fraction_tune=1.0, learning_rate=0.01,
    )  # fmt: skip
    assert len(read) == 4


def test_those_that_came_first_stay_until_another_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_samples, "SAMPLES_IN_MEMORY", 2 * 3 * 4 * 4 + 1)
    kept, read = KeptSamples(), list[str]()

    def get(run: str, client: str, number: int = 3) -> Samples:
        def made() -> Samples:
            read.append(run + client)
            return TensorSamples(torch.zeros(number, 4), torch.zeros(number, dtype=torch.int64))

        return kept.get(run, client, made)

    first = get("a", "1")
    for client in ("2", "3", "1", "2", "3", "3"):
        get("a", client)
    assert get("a", "1") is first and read == ["a1", "a2", "a3", "a3", "a3"]
    assert len(get("a", "nobody", 0).labels) == 0
    get("b", "1")
    get("a", "1")
    assert read[-3:] == ["anobody", "b1", "a1"]
