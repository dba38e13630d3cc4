"""A command that was interrupted in the middle of a training continues it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

from fedstats_app import client_app, simulate
from research.reproduce.plan import PlannedRun, cells_of, planned
from research.reproduce.preset import preset_of_run_config
from research.reproduce.running import make_runs

ROUNDS = 4


@pytest.fixture
def trained(small: Mapping[str, Any], tmp_path: Path) -> PlannedRun:
    path = tmp_path / "own.toml"
    path.write_text('method = "fedncm"\nfine-tune = "probe"\nstart-head = "fedncm"\nlearning-rate = 0.01\n')
    preset = preset_of_run_config(path)
    given = {**small, "num-server-rounds": ROUNDS}
    (run,) = planned(cells_of(preset, preset.rows, preset.columns, [0], given))
    return run


def interrupt(run: PlannedRun, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop in the third round."""
    answer, asked = client_app.app, 0

    def interrupted(msg: Message, context: Context) -> Message:
        nonlocal asked
        asked += msg.metadata.message_type.startswith("train")
        if asked > 2 * 4:  # clients of two rounds
            raise KeyboardInterrupt
        return answer(msg, context)

    with monkeypatch.context() as patched:
        patched.setattr(client_app, "app", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_runs([run], folder, simulate, print)


def rounds(folder: Path) -> list[int]:
    return [json.loads(line)["round"] for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_a_training_goes_on_where_it_was(
    trained: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(trained, tmp_path / "runs", monkeypatch)
    (folder,) = (path.parent for path in tmp_path.glob("runs/*/*/status.json"))
    before = rounds(folder)
    assert ROUNDS not in before and len(before) > 1
    capsys.readouterr()
    assert make_runs([trained], tmp_path / "runs", simulate, print)[trained.name] == folder
    assert rounds(folder) == list(range(ROUNDS + 1))
    assert f"continuing {folder.name}" in capsys.readouterr().out
    whole = make_runs([trained], tmp_path / "again", simulate, print)[trained.name]
    heads = [sorted(path.glob("heads/*.safetensors")) for path in (folder, whole)]
    assert len(heads[0]) == 2
    assert [path.read_bytes() for path in heads[0]] == [path.read_bytes() for path in heads[1]]
