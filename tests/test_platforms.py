"""What macOS and Windows do otherwise, as far as Linux can act it: docs/platforms.md says what that leaves out."""

import ast
import ctypes
import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath

import pytest

from fedstats_app import cli
from fedstats_app.base import files, threads
from fedstats_app.cli.check import machine
from fedstats_app.data.data_options import dataset_spec
from fedstats_app.data.feature_cache import FeatureCache
from fedstats_app.data.paths import without_folders
from fedstats_app.server.closed_form import give_back_memory
from tests.support.commands import REPOSITORY
from tests.support.simulation import nodes_of, simulate

PACKAGE = REPOSITORY / "fedstats_app"
# What Windows has not (the standard library's documentation), and what starts processes as a fork would.
ONLY_POSIX = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty", "multiprocessing"}
ONLY_POSIX |= {"fork", "geteuid", "getuid", "killpg", "mkfifo", "setsid", "sched_getaffinity", "sysconf", "uname"}
ONLY_POSIX |= {one for one in dir(signal) if one.startswith("SIG")} - {"SIGINT", "SIGTERM", "SIG_DFL", "SIG_IGN"}
# Asked for after it was looked whether it is there; the tests below take it away, those of `fedstats node` forks.
GUARDED = {"sched_getaffinity": "threads.py", "sysconf": "threads.py", "getuid": "machine.py"}
GUARDED |= {"fork": "process.py", "SIGCHLD": "process.py"}
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


@pytest.fixture(scope="module")
def parsed() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}


def used(tree: ast.Module) -> Iterator[str]:
    """Yield the modules imported, and the attributes and names imported of `os` and `signal`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (str(node.module).partition(".")[0], *(one.name for one in node.names if node.module == "os"))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("os", "signal"):
            yield node.attr


def test_nothing_is_used_that_only_posix_has_without_a_look_whether_it_is_there(parsed: dict[Path, ast.Module]) -> None:
    found = {(name, path.name) for path, tree in parsed.items() for name in used(tree) if name in ONLY_POSIX}
    assert found == set(GUARDED.items())


def test_text_files_are_utf_8_on_any_system(parsed: dict[Path, ast.Module]) -> None:
    """Elsewhere than on Linux the usual encoding may have few letters, or others in their place."""
    without = []
    for path, tree in parsed.items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            most = node.func.attr != "read_text"
            named = {one.arg for one in node.keywords} & {"encoding"} or len(node.args) > most
            if node.func.attr in ("read_text", "write_text") and not named:
                without.append(f"{path.name}:{node.lineno}")
    assert not without


@pytest.mark.parametrize("path", [r"C:\Users\ann\flowers", r"\\server\share\flowers", "C:/Users/ann/flowers"])
def test_paths_of_windows_are_paths_and_show_no_folders(path: str) -> None:
    assert dataset_spec(path) == dataset_spec(f"folder:{path}") == f"folder:{path}"
    assert without_folders(f"folder:{path}") == "folder:flowers" and without_folders(path) == "flowers"


def test_systems_that_tell_little_of_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sched_getaffinity", "sysconf", "getuid"):
        monkeypatch.delattr(os, name)
    assert threads.usable_cores() == os.cpu_count() and threads.machine_bytes() is None
    monkeypatch.setattr(machine, "Path", lambda path: Path(f"/nowhere{path}"))
    assert machine.listener_owner(22) is None
    for error in (TypeError, AttributeError, OSError):  # Windows, macOS, and a C library that is not there

        def library(name: object, error: type[Exception] = error) -> None:
            raise error

        monkeypatch.setattr(ctypes, "CDLL", library)
        give_back_memory()


def test_a_file_that_is_being_read_is_replaced_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows neither `fedstats runs` nor a virus scanner may end a run whose status.json they read."""
    waited, replace = list[float](), Path.replace

    def held(self: Path, target: Path) -> Path:
        if len(waited) < 2:
            raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", held)
    monkeypatch.setattr(files.time, "sleep", waited.append)
    with pytest.raises(PermissionError):
        files.write_atomically(tmp_path / "status.json", b"1")  # here it means something else
    monkeypatch.setattr(files, "PAUSES_FOR_READERS", (0.01, 0.05, 0.2))
    files.write_atomically(tmp_path / "status.json", b"2")
    assert waited == [0.01, 0.05]
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("status.json", b"2")]


def test_paths_in_the_feature_cache_are_no_longer_than_windows_takes() -> None:
    """260 characters, of which a user's folder has its share."""
    user = PureWindowsPath(r"C:\Users\a.rather.long.user.name\AppData\Local\fedstats")
    file = FeatureCache(Path("root"), "0" * 64, "0" * 64).file
    assert len(f"{user / PureWindowsPath(file.relative_to('root'))}-journal") < 260


def narrow() -> io.TextIOWrapper:
    """Make what a pipe is on a Western European Windows."""
    return io.TextIOWrapper(io.BytesIO(), encoding="cp1252", write_through=True)


def printed(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return bytes(stream.buffer.getvalue()).decode("cp1252")  # type: ignore[attr-defined]  # it is a BytesIO


def test_commands_print_what_a_pipe_has_no_letters_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(arguments: object) -> int:
        print("class 猫")
        return 0

    out = narrow()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(cli, "_command", lambda home: command)
    assert cli.main(["runs"]) == 0 and printed(out) == "class \\u732b\n"


def test_a_run_with_any_class_names_suits_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = narrow()
    monkeypatch.setattr(sys, "stdout", out)
    nodes = nodes_of(tmp_path, "ab", ("猫", "犬"), min_class_count=0)
    methods = "fedncm,fedcof@shrinkage=0.1,fedroot@rank=90%"
    folder = simulate(tmp_path, node_configs=nodes, method=methods, min_clients=2)
    assert "\\u732b" in printed(out)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    assert "heads/fedcof@shrinkage=0.1.safetensors" in names
    assert not [name for name in names if re.search(r'[<>:"|?*\\]|[. ]$', name) or RESERVED.fullmatch(Path(name).name)]
    assert len({name.lower() for name in names}) == len(names)
