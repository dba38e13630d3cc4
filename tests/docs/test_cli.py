"""Every command of the page runs and does what the page says."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from fedstats_app.base.ledger import LedgerFile
from fedstats_app.cli import demo, main
from fedstats_app.cli.arguments import parser
from fedstats_app.cli.supernode import flower
from fedstats_app.heads.calibration import NUM_BINS
from tests.cli.certificates import listening, sign, tls
from tests.docs.markdown import DOCS, blocks, items, prose

PAGE = DOCS / "cli.md"
COMMANDS = [line for block in blocks(PAGE, "bash") for line in block.code.splitlines()]
# In the test's home; the defaults would use the user's cache and the default network.
EXPERIMENT = 'backbone = "random:tiny"\ninput-size = 16\ndevice = "cpu"\nnum-clients = 5\nplots = false\n'


@pytest.fixture
def place(home: Path, image_folder: Path) -> Path:
    shutil.copytree(image_folder / "test", home / "photos")
    runs = home / "fedstats-runs"
    shutil.copytree(runs / "20260101-120000", runs / "20260103-120000")
    (home / "photos.csv").write_text("file\nphotos/red/0.png\nphotos/blue/1.png\n")
    shutil.copytree(home / "photos", home / "sites" / "north")
    (home / "experiment.toml").write_text(EXPERIMENT)
    LedgerFile(home / "state" / "ledger-0.sqlite").fact("data", "/data/scans")
    authority = sign("Test CA")
    authority.write(home, "ca").rename(home / "ca.crt")
    sign("superlink", by=authority, names=["127.0.0.1"]).write(home, "server")
    return home


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(
    command: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower, "run_supernode", lambda *_: None)  # it would run for ever
    monkeypatch.setattr(demo, "_demonstrate", lambda *_: print("a federation"))  # takes minutes; see test_deployment
    words = shlex.split(command.split(" > ")[0].replace("~", str(place)))
    assert words[0] == "fedstats"
    if "photos.fedstats" in words and "photos" not in words[:3]:
        assert main(["release", "photos", "--out", "photos.fedstats", "-c", "experiment.toml"]) == 0
        capsys.readouterr()
    with listening(tls(place / "server.pem")) as port:
        code = main([word.replace(":8000", f":{port}") for word in words[1:]])
    printed = capsys.readouterr()
    # A machine that is busy with other things is told how far a command is.
    assert (code, [line for line in printed.err.splitlines() if " so far" not in line]) == (0, [])
    assert isinstance(json.loads(printed.out), dict) if "--json" in words else printed.out


def test_all_commands_are_shown() -> None:
    assert {command.split()[1] for command in COMMANDS} == {
        "predict", "evaluate", "export", "check", "run", "new", "demo", "remove", "node", "report", "runs",
        "release", "merge", "inspect", "edit",
    }  # fmt: skip


def test_options_in_the_text_exist() -> None:
    named = {word for code in re.findall(r"`([^`]+)`", prose(PAGE)) for word in re.findall(r"--[a-z-]+", code)}
    (commands,) = [action for action in parser()._actions if action.choices]
    known = {option for command in commands.choices.values() for option in command._option_string_actions}  # type: ignore[union-attr]
    assert named and named <= known


def test_entries_of_the_document_are_all_there_are(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(next((place / "fedstats-runs").iterdir())), "picture.png", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {entry for item in items(PAGE, "predict") for entry in re.findall(r"`(\w+)`", item[0])} == set(document)


def test_checks_in_the_table_are_those_there_are(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split("--run-config experiment.toml --root-certificates ca.crt --json")
    seen: set[str] = set()
    with listening(tls(place / "server.pem")) as port:
        for more in ([], ["--node-config", "data-path='photos'", "--superlink", f"127.0.0.1:{port}"]):
            assert main(["check", "--data", *words, *more]) == 0
            seen |= {finding["check"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert {check for item in items(PAGE, "check") for check in item[0].split(", ")} == seen


def test_a_run_left_a_calibrated_head(place: Path) -> None:
    run = next((place / "fedstats-runs").iterdir())
    fitted = json.loads((run / "results.json").read_text())["methods"]["fed3r"]["calibration"]
    assert fitted["num_examples"] == 18 and fitted["nll_after"] < fitted["nll_before"]


def test_numbers_are_those_of_the_code() -> None:
    assert f"({NUM_BINS} bins)" in prose(DOCS / "run-folder.md")
