"""The command as a whole: light, clear errors, exit codes."""

import importlib
import itertools
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedstats_app import __version__
from fedstats_app.cli import main
from fedstats_app.cli.arguments import parsed

REPOSITORY = Path(__file__).parents[2]


def test_help_needs_no_library_and_names_the_commands() -> None:
    program = (
        "import sys\nfrom fedstats_app.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as ended:\n    code = ended.code\n"
        "print(code, sorted({'torch', 'flwr', 'numpy', 'ray', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert all(f"\n    {name} " in done.stdout for name in ("predict", "evaluate", "check", "node"))


def test_the_entry_point_is_the_function_and_the_module_runs_it() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    module, function = project["scripts"]["fedstats"].split(":")
    assert getattr(importlib.import_module(module), function) is main
    done = subprocess.run(
        [sys.executable, "-m", "fedstats_app.cli", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"fedstats-app {__version__}\n"


@pytest.mark.parametrize("words", [["run"], ["runs"], ["demo"], ["release", "data", "--out", "x"], ["new", "x"]])
def test_a_user_without_a_home_is_told_what_to_set(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # neither HOME nor an entry of this uid
    assert main(words) == 2
    assert "this user has no home folder: set HOME to one that it may write to" in capsys.readouterr().err


def test_a_home_that_cannot_be_written_to_is_named_beside_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert f"nothing can be written to the home folder {tmp_path}; HOME=/A/FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["train"],
        ["predict", "folder", "a.png", "--top", "0"],
        ["predict", "folder", "a.png", "--top", "many"],
        ["evaluate", "folder", "pictures", "--batch-size", "-1"],
        ["check", "--no-such-option"],
        ["check", "--timeout", "0"],
        ["check", "--timeout", "nan"],
        ["node", "--no-such-option"],
        ["node", "--port", "0"],
    ],
)
def test_wrong_words_end_with_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and "usage: fedstats" in capsys.readouterr().err


@pytest.mark.parametrize(
    "parts",
    [
        [["run"], ["plots=false"], ["-c", "num-clients=3"], ["seed=1"]],
        [["predict"], ["/a/run"], ["a.png", "b.png"], ["--top", "3"], ["--csv"]],
        [["merge"], ["a", "b"], ["--out", "x"]],
    ],
)
def test_options_may_stand_anywhere_among_the_words(parts: list[list[str]]) -> None:
    """A list of words may have them in between, too."""
    [command, *others] = parts
    words = [part for part in others if not part[0].startswith("-")]
    expected = parsed([*command, *itertools.chain(*words, *(part for part in others if part not in words))])
    single = [[word] for part in words for word in part] + [part for part in others if part not in words]
    plain = [word for part in words for word in part]
    for order in itertools.permutations(single):
        if [word for part in order for word in part if word in plain] == plain:
            assert parsed([*command, *itertools.chain(*order)]) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "folder"], "fedstats predict: name at least one PATH or --text"),
        (["predict", "/no/such/run", "--text", "a"], "fedstats predict: /no/such/run/results.json does not exist"),
        (["predict", "/no/such/run", "a.png"], "fedstats predict: a.png: no such file or folder"),
        (["evaluate", "/no/such/run", "/no/such/pictures"], "fedstats evaluate: folder:/no/such/pictures"),
    ],
)
def test_what_cannot_be_done_ends_with_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(message) and printed.err.count("\n") == 1
    assert printed.out == ""


def test_it_works_without_ray_and_flower_and_with_a_closed_pipe(run_folder: Path, pictures: Path) -> None:
    program = (
        "import sys\nsys.modules['ray'] = sys.modules['flwr'] = None\n"
        f"from fedstats_app.cli import main\nsys.exit(main(['predict', {str(run_folder)!r}, {str(pictures)!r}]))"
    )
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == "" and done.stdout.startswith("head fedncm; ")
