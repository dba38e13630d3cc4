"""The commands of the page are right, and what it promises of tables holds for those that come with the app."""

import shlex
from pathlib import Path

import pytest

from research.reproduce.command import main
from tests.docs.markdown import REPOSITORY, blocks, prose, rows

PAGE = REPOSITORY / "research" / "reproduce.md"
LINES = [line for block in blocks(PAGE, "bash") for line in block.code.splitlines()]
LINES += [row[1].strip("`").replace("\\|", "|") for row in rows(PAGE, "figure")]
COMMANDS = [line for line in LINES if line.startswith("python -m research.reproduce")]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_right(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    words = shlex.split(command)
    assert main([*words[3:], *(["--dry-run"] if len(words) > 3 else [])]) == 0 and capsys.readouterr().out


def test_entries_of_a_table_are_all_described() -> None:
    described = {word.strip("`[] ") for row in rows(PAGE, "entry") for word in row[0].split(",")}
    from research.reproduce import preset

    assert preset._PRESET <= {name.removesuffix(".NAME") for name in described} | {"columns", "run", "sweep"}
    text = prose(PAGE)
    for name in preset._ROW | preset._COLUMN:
        assert f"`{name}`" in text, name


def test_numbers_of_the_page_are_of_commands_beside_them() -> None:
    results = PAGE.read_text().split("## What came out")[1]
    for table in ("fedcof-table-3", "fedcof-table-2", "fedcof-table-7", "fedcgs-table-5", "fedcof-reviews-clients"):
        assert f"python -m research.reproduce {table} " in results
        assert Path(REPOSITORY, "research", "presets", f"{table}.toml").is_file()
