"""`fedstats node ledger`."""

from pathlib import Path

import pytest

from fedstats_app.cli import main
from tests.client.test_ledger import ask, node, question

__all__ = ["node"]


def test_an_owner_can_look_and_reset(
    node: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not ask({**node, "max-heads-scored": 0}, question(holdout=0.2).to_content()).has_error()

    assert main(["node", "ledger", "--state-dir", str(tmp_path / "state")]) == 0
    shown = capsys.readouterr().out
    assert str(node["data-path"]) in shown and "  1 releases in " in shown

    assert main(["node", "ledger", "--reset", "--state-dir", str(tmp_path / "state")]) == 0
    assert "1 releases" in capsys.readouterr().out


def test_where_there_is_no_ledger_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "ledger", "--state-dir", str(tmp_path)]) == 2
    assert f"there is no ledger in {tmp_path}" in capsys.readouterr().err

    (tmp_path / "ledger-0.sqlite").write_bytes(b"no ledger" * 1000)
    assert main(["node", "ledger", "--state-dir", str(tmp_path)]) == 2 and "cannot be used" in capsys.readouterr().err
