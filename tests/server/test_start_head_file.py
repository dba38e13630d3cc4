"""A head of an earlier run as the start: a probe goes on where it ended, and what does not belong is refused early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedstats_app.report.head_file import read_head
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.option import ConfigError
from tests.support.simulation import rounds, simulate


def test_training_goes_on_from_a_trained_head(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": "fedncm", "fine_tune": "probe", "learning_rate": 0.1, "temperature": 1.0}
    whole = simulate(tmp_path / "a", **settings, num_server_rounds=2)
    first = simulate(tmp_path / "b", **settings, num_server_rounds=1)
    path = first / "heads" / "fedncm-probe.safetensors"
    second = simulate(tmp_path / "c", **settings, num_server_rounds=1, start_head="file", start_head_file=str(path))
    ended, begun = rounds(first, "fedncm-probe")[-1], rounds(second, "file-probe")[0]
    assert (begun["accuracy"], begun["loss"]) == (ended["accuracy"], ended["loss"])
    heads = [
        read_head(folder / "heads" / name)[0]
        for folder, name in ((whole, "fedncm-probe.safetensors"), (second, "file-probe.safetensors"))
    ]
    # Round 1 draws other batches than round 2; both take one more step from the same head.
    assert 0 < float((heads[0].weight - heads[1].weight).norm()) < 0.2 * float(heads[0].weight.norm())
    settings["fine_tune"] = "full"
    full = simulate(tmp_path / "d", **settings, num_server_rounds=1, start_head="file", start_head_file=str(path))
    assert rounds(full, "file-full")[0]["loss"] == pytest.approx(ended["loss"], rel=1e-5)


def test_a_head_of_another_backbone_or_other_classes_is_refused_before_any_client_is_asked(tmp_path: Path) -> None:
    first = simulate(tmp_path / "a", method="fedncm")
    path = str(first / "heads" / "fedncm.safetensors")
    settings: dict[str, Any] = {"method": "fedncm", "fine_tune": "probe", "start_head": "file", "num_server_rounds": 1}
    with pytest.raises(ValueError, match=r"start-head-file: .* is for features of random:tiny, fingerprint"):
        simulate(tmp_path / "b", **settings, start_head_file=path, input_size=24)
    with pytest.raises(ValueError, match=r"is for the classes .*; this run's are"):
        simulate(tmp_path / "c", **settings, start_head_file=path, classes="5")
    with pytest.raises(FileNotFoundError, match="no head at"):
        simulate(tmp_path / "d", **settings, start_head_file=path + "x")
    assert all(not list(tmp_path.glob(f"{run}/runs/*/results.json")) for run in "bcd")


@pytest.mark.parametrize("settings", [{"start_head": "file"}, {"start_head_file": "/a/b.safetensors"}])
def test_word_and_path_go_together(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="start-head-file: goes with start-head file"):
        AppConfig.of(fine_tune="probe", **settings)
