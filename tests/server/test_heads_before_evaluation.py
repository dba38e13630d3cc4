"""What goes wrong while heads are evaluated does not cost them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedstats_app import load
from fedstats_app.server import closed_form
from tests.support.simulation import Killed, killed


def test_heads_are_on_disk_before_anybody_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise Killed

    monkeypatch.setattr(closed_form, "score", die)

    folder = killed(tmp_path, method="fedncm,fedcof", num_clients=3)

    assert sorted(path.stem for path in (folder / "heads").iterdir()) == ["fedcof", "fedncm"]
    assert len(load(str(folder), "fedcof").class_names) == 10
