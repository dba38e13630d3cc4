"""Progress of commands: lines on stderr, nothing among the results; and Ctrl-C."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstats_app.base.progress import Progress
from fedstats_app.cli import evaluate, main, predict
from fedstats_app.cli import terminal as module
from fedstats_app.report.classifier import Classifier
from tests.support.clock import Clock

SECONDS_PER_IMAGE = 4.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that goes on while images are classified, in chunks of six, and for the heart of every command."""
    clock = Clock()

    class Clocked(Progress):
        def __init__(self, write: object) -> None:
            super().__init__(write, clock)  # type: ignore[arg-type]

        @contextmanager
        def heartbeat(self) -> Iterator[None]:
            clock.beats.append(self.beat)
            yield

    original = Classifier.features_of_inputs

    def one_after_another(self: Classifier, inputs: Iterator[Any]) -> torch.Tensor:
        taken = []
        for own in inputs:
            clock.sleep(SECONDS_PER_IMAGE)
            taken.append(own)
        return original(self, taken)

    monkeypatch.setattr(Classifier, "features_of_inputs", one_after_another)
    monkeypatch.setattr(module, "Progress", Clocked)
    monkeypatch.setattr(predict, "CHUNK", 6)
    monkeypatch.setattr(evaluate, "CHUNK", 6)
    return clock


@pytest.mark.parametrize("command", ["predict", "evaluate"])
@pytest.mark.usefixtures("clock")
def test_lines_say_how_far_it_is(
    command: str, run_folder: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(run_folder), str(pictures), "--json"]) == 0
    printed = capsys.readouterr()
    json.loads(printed.out)
    lines = printed.err.splitlines()
    assert lines[0] == f"fedstats {command}: 1 of 12 images; 6 s so far, about 42 s left"
    assert all(line.startswith(f"fedstats {command}: ") and " of 12 images; " in line for line in lines)
    done = [int(re.findall(r"(\d+) of 12 images", line)[0]) for line in lines]
    assert done == sorted(done) and 9 <= done[-1] < 12


@pytest.mark.parametrize(
    "words", [["predict", "{run}", "{pictures}"], ["evaluate", "{run}", "{pictures}"], ["check", "--data"]]
)
def test_ctrl_c_ends_a_command_with_one_line_and_code_130(
    words: list[str],
    run_folder: Path,
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedstats_app.cli.inputs.read_ahead", interrupted)
    monkeypatch.setattr("fedstats_app.backbones.registry.loaded_backbone", interrupted)
    assert main([word.format(run=run_folder, pictures=pictures) for word in words]) == 130
    assert capsys.readouterr().err == f"fedstats {words[0]}: stopped by Ctrl-C\n"
