"""deployment/audit.py: a run of six sites under masks, as it was, and changed in each of the ways that it looks for."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from deployment import audit
from fedstats_app import client_app
from fedstats_app.cli import main
from tests.support.commands import printed_by
from tests.support.simulation import nodes_of, simulate

SITES = "abcdef"
OPTIONS: dict[str, Any] = {"method": "fedncm,fed3r,fedcgs", "max_client_samples": 1000, "min_clients": 3}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return federation(tmp_path_factory.mktemp("audited"))


def federation(root: Path, **options: Any) -> Path:
    """Make a run folder, and the sites' folders beside it."""
    nodes = [
        {**node, "state-dir": str(root / "state" / name)}
        for name, node in zip(SITES, nodes_of(root, SITES, ("ant", "bee", "cat"), images=6), strict=True)
    ]
    simulate(root, node_configs=nodes, secure_sums="on", **OPTIONS, **options).rename(root / "run")
    return root


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    for name in ("run", "state"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


def audited(
    place: Path, capsys: pytest.CaptureFixture[str], sites: Iterable[str] = SITES
) -> tuple[int, dict[str, str]]:
    """The exit code, and the state of each finding."""
    words = [word for name in sites for word in ("--site", str(place / "state" / name))]
    code = audit.main([str(place / "run"), *words, "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return code, {Path(one["what"]).name: one["state"] for one in findings}


def test_a_run_is_as_its_folder_and_its_sites_say(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = audited(made, capsys)
    assert code == 0 and found.pop("epsilon") == "-"
    assert set(found.values()) == {"ok"}
    heads = {"head fedncm", "head fed3r", "head fedcgs"}
    assert {"who took part", "what left each site", "sum", *heads, *SITES} < set(found)
    assert "sites' own records of the sum" in found


def test_nodes_that_share_a_state_dir_have_own_records(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As all nodes of one user do who name neither state-dir nor cache-dir."""
    for name in SITES:
        shutil.copytree(place / "state" / name, place / "state" / "all", dirs_exist_ok=True)
    code, found = audited(place, capsys, ["all"])
    assert code == 0 and found["sites' own records of the sum"] == "ok"
    assert [state for what, state in found.items() if what.startswith("sent-")] == ["ok"] * len(SITES)


@pytest.mark.parametrize("at", ["query.secure_sums", "query.secure_unmask"])
def test_a_site_lost_on_the_way_says_the_same(at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    came: list[int] = []

    def dying(msg: Message, context: Context) -> Message:
        if msg.metadata.message_type == at and str(context.node_config["data-path"]).endswith("f"):
            came.append(1)
            if len(came) > 1:  # after presence
                return Message(Error(100, "killed"), reply_to=msg)
        return client_app.app(msg, context)

    federation(tmp_path, app=dying)
    capsys.readouterr()
    code, found = audited(tmp_path, capsys)
    assert (code, found["sites' own records of the sum"]) == (0, "ok")


def change_head(place: Path) -> None:
    rewrite(place / "run" / "heads" / "fed3r.safetensors", "weight")


def change_sum(place: Path) -> None:
    rewrite(place / "run" / "statistics.safetensors", "class-sums")


def rewrite(path: Path, name: str, others: Mapping[str, Any] = MappingProxyType({}), **about: str) -> None:
    """Change a file's numbers, or its header, as who makes a file of their own would."""
    with safe_open(path, "np") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()} | dict(others)  # noqa: SIM118
        header = {**file.metadata(), **about}
    if name:
        tensors[name] = np.roll(tensors[name], 1, axis=0)
    save_file(tensors, path, header)


def leave_a_client_out(place: Path) -> None:
    path = place / "run" / "statistics.safetensors"
    with safe_open(path, "np") as file:
        summed = json.loads(file.metadata()["clients"])
    rewrite(path, "", clients=json.dumps(summed[1:]))


def send_something_else(place: Path) -> None:
    (path,) = (place / "state" / "a").glob("sent-*.json")
    ((run, sent),) = json.loads(path.read_text()).items()
    path.write_text(json.dumps({run: {**sent, "query.secure_sums": "0" * 64}}))


def send_something_more(place: Path) -> None:
    (path,) = (place / "state" / "a").glob("sent-*.json")
    ((run, sent),) = json.loads(path.read_text()).items()
    path.write_text(json.dumps({run: {**sent, "query.statistics": "0" * 64}}))


def forget_the_run(place: Path) -> None:
    (path,) = (place / "state" / "a").glob("sent-*.json")
    path.unlink()


def sum_over_others(place: Path) -> None:
    (path,) = (place / "state" / "a").glob("ledger-*.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            'update fact set value = replace(value, \'"parties": {\', \'"parties": {"ff": [], \') '
            "where name glob 'secure-set|*'"
        )
        connection.commit()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (change_head, {"head fed3r"}),
        (change_sum, {"head fedncm", "head fed3r", "head fedcgs"}),
        (leave_a_client_out, {"sum"}),
        (send_something_else, {"a"}),
        (send_something_more, {"a"}),
        (forget_the_run, {"a"}),
        (sum_over_others, {"sites' own records of the sum"}),
    ],
)
def test_what_was_changed_is_found(
    change: Callable[[Path], None], wrong: set[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(place)
    code, found = audited(place, capsys)
    assert code == 1 and {what for what, state in found.items() if state == "WRONG"} == wrong


def test_clients_of_no_site_that_was_named_may_be_anyone(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = audited(made, capsys, SITES[1:])
    assert (code, found["who they are"]) == (0, "-") and "who they are" not in audited(made, capsys)[1]


@pytest.mark.parametrize("dtype", ["F8_E4M3", "X"])
def test_a_file_that_no_reader_knows_is_damage(dtype: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "run" / "statistics.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F64"', f'"{dtype[:3]:3}"'.encode()))
    assert audit.main([str(place / "run")]) == 2 and "is damaged: KeyError" in capsys.readouterr().err


def test_a_line_that_is_no_json_is_damage(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "run" / "clients.jsonl"
    path.write_text(path.read_text().replace('"merged"', '"mer', 1))
    assert audit.main([str(place / "run")]) == 2 and "clients.jsonl" in capsys.readouterr().err


def test_a_sum_without_a_client_is_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = nodes_of(tmp_path, SITES, ("ant", "bee"), images=6, min_gram_samples=1)
    options = {**OPTIONS, "method": "fedncm,fed3r,fedcof,fedcgs"}
    folder = simulate(tmp_path, node_configs=nodes, save_statistics="clients", **options)
    client = json.loads((folder / "clients.jsonl").read_text().splitlines()[0])["client"]
    capsys.readouterr()
    assert main(["remove", str(folder), "--client", str(client), "--json"]) == 0
    removed = Path(json.loads(capsys.readouterr().out)["folder"])
    assert audit.main([str(removed)]) == 0
    said = capsys.readouterr().out
    assert "ok     removal of client" in said and "ok     kept clients: the sum is that of 5 clients" in said
    assert [f"ok     head {name}: " in said for name in ("fedncm", "fed3r", "fedcof", "fedcgs")] == [True] * 4
    # The heads of before, of which FedCOF's alone needs each client's means.
    shutil.copytree(removed, tmp_path / "old-heads")
    shutil.copytree(folder / "heads", tmp_path / "old-heads" / "heads", dirs_exist_ok=True)
    assert audit.main([str(tmp_path / "old-heads")]) == 1 and capsys.readouterr().out.count("WRONG  head") == 4
    kept = load_file(folder / "statistics.safetensors").items()
    before = {name: one for name, one in kept if name.startswith("row-")}
    shutil.copytree(removed, tmp_path / "old-rows")
    rewrite(tmp_path / "old-rows" / "statistics.safetensors", "", before)
    assert audit.main([str(tmp_path / "old-rows")]) == 1 and "WRONG  sum" in capsys.readouterr().out
    rewrite(removed / "statistics.safetensors", "class-sums")
    assert audit.main([str(removed)]) == 1
    said = capsys.readouterr().out
    assert "WRONG  removal of client" in said and "WRONG  kept clients" in said


def test_the_file_alone_says_the_same_without_any_of_the_app(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(made / "run"), "--site", str(made / "state" / "a")]
    assert audit.main([*words]) == 0
    said = capsys.readouterr().out
    code = f"import runpy, sys; sys.argv = {[audit.__file__, *words]}; runpy.run_path(sys.argv[0], run_name='__main__')"
    loaded = "print({'torch', 'flwr', 'safetensors', 'fedstats_app'} & set(sys.modules))"
    assert printed_by(f"import atexit, sys; atexit.register(lambda: {loaded}); {code}") == f"{said}set()\n"
