"""Stage 1 of a run: what it writes and says, in which order, and what goes wrong meanwhile."""

import platform
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

from fedstats_app import client_app, load
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.server import closed_form
from tests.support.simulation import Killed, clients, killed, read_json, simulate, site_folder


def test_heads_are_on_disk_before_anybody_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise Killed

    monkeypatch.setattr(closed_form, "score", die)

    folder = killed(tmp_path, method="fedncm,fedcof", num_clients=3)

    assert sorted(path.stem for path in (folder / "heads").iterdir()) == ["fedcof", "fedncm"]
    assert len(load(str(folder), "fedcof").class_names) == 10


def test_shares_add_up_and_nobody_honest_is_named(tmp_path: Path) -> None:
    folder = simulate(tmp_path, method="fedncm,fedcof", num_clients=5)

    lines = clients(folder)
    assert sum(line["share"] for line in lines) == pytest.approx(1.0, abs=1e-3)
    of_class = [line["class_shares"] for line in lines]
    for name in {name for shares in of_class for name in shares}:
        assert sum(shares.get(name, 0.0) for shares in of_class) == pytest.approx(1.0, abs=1e-3)
    assert all(0.0 < line["times_usual_spread"] < 10.0 for line in lines)
    results = read_json(folder, "results.json")
    assert results["influential_clients"] == [] and results["without_influential"] is None


def test_a_run_in_which_every_client_fails_ends_with_their_reasons(tmp_path: Path) -> None:
    def broken(msg: Message, context: Context) -> Message:
        if msg.metadata.message_type == "query.statistics":
            raise OSError("no such disk")
        return client_app.app(msg, context)

    with pytest.raises(TooFewClients, match=r"0 .*2 are needed.*"):
        simulate(tmp_path, method="fedncm", num_clients=3, min_clients=2, app=broken)
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_json(folder, "status.json")["state"] == "failed"
    assert [line["outcome"] for line in clients(folder)] == ["failed"] * 3


def resident() -> float:
    """Megabytes of memory that this process has and no file."""
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not GNU's")
def test_what_lies_between_what_is_kept_is_given_back() -> None:
    closed_form.give_back_memory()
    parts = [b"x" * (60_000 + number % 2) for number in range(3000)]  # 180 MB
    kept = parts[::100]
    del parts
    before = resident()
    closed_form.give_back_memory()
    assert kept and before - resident() > 100


def test_an_option_for_long_tails_is_named_where_classes_are_unequal(tmp_path: Path) -> None:
    for split in ("train", "test"):
        site_folder(tmp_path / split, ("ant",), seed=1, images=40)
        site_folder(tmp_path / split, ("bee",), seed=2, images=4)
    data = {"dataset": f"folder:{tmp_path}", "num_clients": 2, "partitioner": "iid"}

    folder = simulate(tmp_path / "run", method="fedncm,fed3r,fed3r@class-balance=true", **data)

    notes = {name: " ".join(one["notes"]) for name, one in read_json(folder, "results.json")["methods"].items()}
    assert "the largest class has 10 times the samples of the smallest" in notes["fed3r"]
    assert "fed3r@class-balance=true may be more accurate" in notes["fed3r"]
    assert "smallest" not in notes["fedncm"] + notes["fed3r@class-balance=true"]
