"""What a server loads while it waits: once, beside the waiting, and no mistake is said twice or hidden."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fedstats_app.server import machine
from fedstats_app.server.machine import warmed_up
from fedstats_app.settings.app_config import AppConfig


class Loaded(list[str]):
    """Which things were loaded; a backbone's loading waits for the event."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        super().__init__()
        self.may_load = threading.Event()

        def backbone(*_: Any) -> Any:
            assert self.may_load.wait(60)
            self.append("backbone")
            if fails:
                raise ValueError("no such backbone")
            return type("Backbone", (), {"engine_in_words": "torch"})

        monkeypatch.setattr(machine, "partitions", lambda *_: self.append("partitions"))
        monkeypatch.setattr(machine, "loaded_backbone", backbone)


def test_it_is_loaded_meanwhile_and_there_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Loaded(monkeypatch)
    with warmed_up(AppConfig()):
        assert "backbone" not in loaded
        loaded.may_load.set()
    assert loaded == ["partitions", "backbone"]


@pytest.mark.parametrize("plots", [True, False])
def test_a_long_wait_loads_what_draws_plots_too(monkeypatch: pytest.MonkeyPatch, plots: bool) -> None:
    loaded, done = Loaded(monkeypatch), threading.Event()
    monkeypatch.setattr(machine, "_load_plots", done.set)
    loaded.may_load.set()
    with warmed_up(AppConfig.of(plots=plots)):
        assert done.wait(60 if plots else 0.2) == plots


def test_a_short_wait_is_not_made_longer_for_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, done = Loaded(monkeypatch), threading.Event()
    monkeypatch.setattr(machine, "_load_plots", done.set)
    with warmed_up(AppConfig()):
        threading.Timer(0.2, loaded.may_load.set).start()
    assert loaded == ["partitions", "backbone"] and not done.is_set()


def test_a_mistake_is_left_to_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Loaded(monkeypatch, fails=True)
    loaded.may_load.set()
    with warmed_up(AppConfig()):
        pass
    assert loaded == ["partitions", "backbone"]


def test_who_waits_in_vain_waits_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, done = Loaded(monkeypatch), threading.Event()
    monkeypatch.setattr(machine, "_load_plots", done.set)
    with pytest.raises(TimeoutError), warmed_up(AppConfig()):
        raise TimeoutError
    assert "backbone" not in loaded
    loaded.may_load.set()
    for thread in threading.enumerate():
        if thread.name == "fedstats-warm-up":
            thread.join(60)
    assert not done.is_set()


@pytest.mark.parametrize("dataset", ["hub:ylecun/mnist", "folder:/somewhere"])
def test_no_other_data_are_touched_before_it_is_known_who_has_data(
    monkeypatch: pytest.MonkeyPatch, dataset: str
) -> None:
    loaded = Loaded(monkeypatch)
    loaded.may_load.set()
    with warmed_up(AppConfig.of(dataset=dataset)):
        pass
    assert loaded == []
