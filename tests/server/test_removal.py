"""A run without a client is the run that never had it."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fedstats_app
from fedstats_app.cli import main
from fedstats_app.client import statistics
from fedstats_app.client.site import Site
from fedstats_app.report.head_file import LABEL_MARGINS, SUPERSEDED, read_head
from fedstats_app.report.statistics_file import load_statistics
from fedstats_app.server import removal
from fedstats_app.server.removal import remove_clients
from fedstats_app.testing import FIRST_NODE_ID
from tests.support.made_targets import write_classes
from tests.support.simulation import clients, nodes_of, read_json, simulate

SETTINGS: dict[str, Any] = {"num_clients": 5, "min_clients": 1, "means_per_class": 2, "nodes": 1}
METHODS = ("fedncm", "fed3r", "fedcof", "fedcgs", "fedroot")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("whole"), save_statistics="clients", **SETTINGS)


def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int, **settings: Any) -> Path:
    """Return a run in which one client failed, and so never was."""
    split = Site.split

    def failing(site: Site, *args: Any, **how: Any) -> Any:
        if site.client_id == missing:
            raise OSError("gone")
        return split(site, *args, **how)

    with monkeypatch.context() as patched:
        patched.setattr(Site, "split", failing)
        return simulate(tmp_path, **{**SETTINGS, **settings})


def assert_same_heads(one: Path, other: Path) -> None:
    for name in METHODS:
        found, expected = (read_head(run / "heads" / f"{name}.safetensors")[0] for run in (one, other))
        assert torch.equal(found.weight, expected.weight) and torch.equal(found.bias, expected.bias), name
        assert torch.equal(found.present, expected.present), name


def test_heads_and_statistics_are_those_of_a_run_that_never_had_it(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = without(tmp_path, monkeypatch, 2)
    removal = remove_clients(whole, ["2"], str(tmp_path / "removed"))

    assert_same_heads(removal.folder, expected)
    found, wanted = (list(vars(load_statistics(run).total.summed()).values())[:3] for run in (removal.folder, expected))
    assert all(map(torch.equal, found, wanted))
    assert removal.num_clients == 4 and removal.methods == METHODS and not removal.not_made
    assert [one["client"] for one in clients(removal.folder)] == [0, 1, 3, 4]
    assert read_json(removal.folder, "status.json")["state"] == "completed"
    # The old heads are the same heads, and say what took their place; whoever loads one is told.
    head, header = read_head(whole / "heads" / "fed3r.safetensors")
    assert header[SUPERSEDED] == f"client 2 of run 7 removed: {removal.folder}"
    assert not torch.equal(head.weight, read_head(removal.folder / "heads" / "fed3r.safetensors")[0].weight)
    made = read_head(removal.folder / "heads" / "fed3r.safetensors")[1]
    # Nothing that the old head's scores gave: a promise of its sets would not hold for another head.
    assert not {SUPERSEDED, LABEL_MARGINS, "temperature", "calibrated-on"} & made.keys() and LABEL_MARGINS in header
    fedstats_app.load(whole, "fed3r")
    assert "is superseded: client 2 of run 7 removed" in caplog.text
    assert len(fedstats_app.load(removal.folder, "fed3r").class_names) == 10

    # Once more, from the new folder; nobody is left in the end.
    again = remove_clients(removal.folder, ["7/0", "4"], str(tmp_path / "again"))
    assert [one.client for one in load_statistics(again.folder).clients] == [1, 3]
    with pytest.raises(ValueError, match="without 1, 3 no client is left"):
        remove_clients(again.folder, ["1", "3"])


def test_a_client_of_the_extending_or_of_the_extended_run_can_go(tmp_path: Path) -> None:
    early, late = nodes_of(tmp_path / "x", "abc", ("ant", "bee")), nodes_of(tmp_path / "y", "d", ("ant", "cat", "bee"))
    kept: dict[str, Any] = {"save_statistics": "clients", "min_clients": 1}
    first = simulate(tmp_path / "1", node_configs=early, **kept)
    second = simulate(tmp_path / "2", node_configs=late, extend=str(first), **kept)
    merged = load_statistics(second).clients
    assert len(merged) == 4

    fewer = simulate(tmp_path / "3", node_configs=early[:2], **kept)
    expected = simulate(tmp_path / "4", node_configs=late, extend=str(fewer), **kept)
    assert_same_heads(remove_clients(second, [str(merged[2].client)]).folder, expected)

    assert merged[0].client == merged[3].client  # both runs have the id 7 here, and number their nodes alike
    twice = f"7/{FIRST_NODE_ID}"
    with pytest.raises(ValueError, match=f"such as {twice}, {twice}; got '{twice}'"):
        remove_clients(second, [twice])


def test_what_cannot_be_removed_is_a_clear_error(tmp_path: Path, whole: Path) -> None:
    sums_only = simulate(tmp_path, method="fedncm", num_clients=2, min_clients=1)
    with pytest.raises(FileNotFoundError, match=r"client 0 of run 7 sent was not kept .*save-statistics"):
        remove_clients(sums_only, ["0"])
    assert read_head(sums_only / "heads" / "fedncm.safetensors")[1].get(SUPERSEDED) is None
    with pytest.raises(ValueError, match=r"client must be one of the run's.*7/0, 7/1.*got '9'"):
        remove_clients(whole, ["9"])
    with pytest.raises(FileNotFoundError, match="no statistics"):
        remove_clients(tmp_path, ["0"])


def test_who_harms_is_named_and_can_be_removed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of eight swap their labels: leaving out one alone changes little."""
    collected, above_floor = statistics._collected, statistics.statistics_above_floor

    def swapped(site: Site, *rest: Any) -> Any:
        def swap(policy: Any, specs: Any, labels: torch.Tensor, *more: Any, **named: Any) -> Any:
            return above_floor(policy, specs, (labels + 1) % 10 if site.client_id in (2, 5) else labels, *more, **named)

        monkeypatch.setattr(statistics, "statistics_above_floor", swap)
        return collected(site, *rest)

    monkeypatch.setattr(statistics, "_collected", swapped)
    settings: dict[str, Any] = {"method": "fedncm,fed3r", "num_clients": 8, "partitioner": "iid", "min_clients": 1}
    folder = simulate(tmp_path, **settings)

    results = read_json(folder, "results.json")
    without = results["without_influential"]
    assert sorted(without["clients"]) == [2, 5]
    who, _, how = results["influential_clients"]
    assert "contradict the others" in who and "sites " in who
    assert all(accuracy > results["methods"][name]["accuracy"] + 0.03 for name, accuracy in without["accuracy"].items())

    # What it says makes the heads of all others, from what was kept of these two alone.
    assert {path.name.split("-")[0] for path in (folder / "clients").iterdir()} == {"2", "5"}
    assert main([*how.removeprefix("heads without: fedstats ").split(), "--output-dir", str(tmp_path / "removed")]) == 0
    (removed,) = (tmp_path / "removed").iterdir()
    whole = simulate(tmp_path / "whole", save_statistics="clients", **settings)
    folded = remove_clients(whole, ["2", "5"], str(tmp_path / "folded")).folder
    for method in ("fedncm", "fed3r"):
        found, expected = (read_head(run / "heads" / f"{method}.safetensors")[0] for run in (removed, folded))
        assert torch.allclose(found.weight, expected.weight, rtol=0, atol=1e-9), method


def test_ctrl_c_leaves_all_whole(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = {path: path.read_bytes() for path in whole.parent.rglob("*") if path.is_file()}
    monkeypatch.setattr(removal, "take_over", interrupted)
    assert main(["remove", str(whole), "--client", "1"]) == 130
    assert capsys.readouterr().err == "fedstats remove: stopped by Ctrl-C\n"
    assert {path: path.read_bytes() for path in whole.parent.rglob("*") if path.is_file()} == before


def test_classes_merged_afterwards_give_the_heads_of_data_that_had_one_name(tmp_path: Path) -> None:
    names = {"a": "Cat", "b": "cat", "c": "dog", "d": "bird"}
    write_classes(tmp_path / "data", names)
    same = {"num_clients": 3, "partitioner": "iid", "exact_sums": True, "dataset": f"parquet:{tmp_path / 'data'}"}
    fine = simulate(tmp_path / "1", **same, label_column="fine", method="fedncm,fed3r,fedcgs")
    coarse = simulate(tmp_path / "2", **same, label_column="coarse", method="fedncm,fed3r,fedcgs")
    words = ["edit", str(fine), "--merge", "Cat,cat", "--rename", "dog=hound", "--output-dir", str(tmp_path / "new")]
    assert main(words) == 0
    (folder,) = (tmp_path / "new").iterdir()
    assert load_statistics(folder).class_names == ("Cat", "bird", "hound")
    assert load_statistics(coarse).class_names == ("Cat", "bird", "hound")
    for name in ("fedncm", "fed3r", "fedcgs"):
        found, expected = (read_head(run / "heads" / f"{name}.safetensors")[0] for run in (folder, coarse))
        assert torch.equal(found.weight, expected.weight) and torch.equal(found.bias, expected.bias), name
    assert fedstats_app.load(folder, "fed3r").class_names == ["Cat", "bird", "hound"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "say what to change"),
        (("--merge", "1,none"), "must be some of"),
        (("--merge", "1,2", "--drop", "1"), "can be merged, renamed or dropped once"),
        (("--rename", "1=2"), "must not be that of another class"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused(
    whole: Path, words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = load_statistics(whole).class_names
    given = [word.replace("1", names[1]).replace("2", names[2]) for word in words]
    assert main(["edit", str(whole), *given]) == 2
    assert reason in capsys.readouterr().err
