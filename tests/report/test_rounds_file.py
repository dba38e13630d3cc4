import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedstats_app.base.files import to_json
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.training_record import TrainingResult, read_rounds
from tests.support.trainings import make_training

FEDCOF = make_training("fedcof", [0.80, 0.81, 0.82, 0.83])
RANDOM = make_training("random", [0.1, 0.2, 0.3, 0.4])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rounds.jsonl"


def append(path: Path, *trainings: TrainingResult, first: int = 0, last: int = 3) -> None:
    """Append as one process does."""
    folder = RunFolder(path.parent, "1", datetime.now(UTC))
    for training in trainings:
        for record in training.rounds[first : last + 1]:
            folder.append_round(record)


def test_rounds_are_one_line_each_and_come_back(path: Path) -> None:
    append(path, FEDCOF, RANDOM)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2, 3] * 2
    assert read_rounds(path) == [*FEDCOF.rounds, *RANDOM.rounds]


def test_a_run_that_goes_on_replaces_the_rounds_after_its_checkpoint(path: Path) -> None:
    append(path, FEDCOF)
    append(path, RANDOM, last=2)  # killed after round 2, whose last checkpoint is that of round 0
    better = make_training("random", [0.1, 0.25, 0.35, 0.45])
    append(path, better, first=1)
    assert read_rounds(path) == [*FEDCOF.rounds, *RANDOM.rounds[:1], *better.rounds[1:]]
    assert len(path.read_text().splitlines()) == 8


def test_a_cut_last_line_is_left_out_and_the_next_line_is_whole(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(path, FEDCOF)
    path.write_bytes(path.read_bytes()[:-9])
    assert read_rounds(path) == FEDCOF.rounds[:3] and "line 4 was cut off" in caplog.text
    append(path, FEDCOF, first=3)
    assert read_rounds(path) == FEDCOF.rounds
    append(path, RANDOM)
    path.write_bytes(path.read_bytes()[:-9])
    append(path, RANDOM, first=2)
    assert read_rounds(path) == [*FEDCOF.rounds, *RANDOM.rounds]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no JSON", " is damaged"),
        ("[1]", " is damaged: it must be a JSON object, got list"),
        (to_json({"round": 1}, indent=None), ": not a round"),
    ],
)
def test_any_other_line_that_is_no_round_is_refused_by_number(path: Path, line: str, reason: str) -> None:
    append(path, FEDCOF, last=1)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=rf"rounds\.jsonl, line 3{reason}"):
        read_rounds(path)
