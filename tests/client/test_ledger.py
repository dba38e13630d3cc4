"""Differencing: what a server learns that asks a node with data of its own twice, and what the node remembers."""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedstats_app import client_app
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.base.ledger import LedgerFile
from fedstats_app.base.option import flattened
from fedstats_app.cli import main
from fedstats_app.client import site as client_site
from fedstats_app.client import statistics as client_statistics
from fedstats_app.client.ledger import ledger_of
from fedstats_app.client.site import Site
from fedstats_app.data.clients import own_dataset
from fedstats_app.heads import LinearHead
from fedstats_app.methods import METHODS
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import StatisticsSpec, client_digest
from fedstats_app.testing import instruction
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire import StatisticsRequest, read_statistics_reply
from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.evaluation import evaluation_content
from fedstats_app.wire.keeping import content_digest
from fedstats_app.wire.reading import to_values
from fedstats_app.wire.release import read_release
from tests.support.simulation import nodes_of, simulate, site_folder

CLASSES = ("ant", "bee")
CONFIG = AppConfig.of(backbone="random:tiny", input_size=16, batch_size=16)
FLOOR = 5
Node = dict[str, object]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Return a node with 22 ants and 22 bees, each message to it as in a new process."""
    made: Node = {"data-path": site_folder(tmp_path / "site", CLASSES, seed=1, images=22)}
    yield {**made, "state-dir": str(tmp_path / "state")}
    forget()


def forget() -> None:
    """Leave nothing in memory of what a message before has loaded."""
    own_dataset.cache_clear()
    client_site._split.cache_clear()


def ask(
    node: Mapping[str, object], content: RecordDict, kind: str = "query.statistics", *, run: int = 1, **settings: Any
) -> Message:
    forget()
    config = {**CONFIG.to_run_config(), **{key.replace("_", "-"): value for key, value in flattened(settings).items()}}
    return client_app.app(instruction(content, kind), Context(run, 4, dict(node), RecordDict(), config))


def question(spec: StatisticsSpec | None = None, **options: Any) -> StatisticsRequest:
    asked: dict[str, Any] = {"class_names": CLASSES, "wire_dtype": "float64", **options}
    return StatisticsRequest(2, spec or StatisticsSpec(), **asked)


def rows_of(node: Mapping[str, object], request: StatisticsRequest, floor: int = 0) -> list[tuple[int, torch.Tensor]]:
    """Return (class, sum) of all rows in an answer to a run with a floor of its own."""
    reply = ask(node, request.to_content(), min_class_count=floor)
    if reply.has_error():
        assert "data changed by too few samples" in reply.error.reason or "max-releases" in reply.error.reason
        return []
    rows = read_statistics_reply(reply, request).statistics.rows
    return list(zip(rows.class_ids.tolist(), rows.class_sums, strict=True))


def features_of(node: Mapping[str, object], label: int) -> torch.Tensor:
    """Return the node's features of a class, which the server should not learn."""
    dataset = own_dataset(str(node["data-path"]), CONFIG.data)
    samples = [dataset.sample(int(index)) for index in np.flatnonzero(dataset.labels == label)]
    return torch.cat(list(loaded_backbone(CONFIG.backbone_for(own_data=True)).extract(samples))).double()


def num_learned(features: torch.Tensor, sums: list[torch.Tensor]) -> int:
    """Count samples whose feature is a combination of the sums, to rounding: a server that has them has it."""
    known = torch.stack(sums).double()
    found = known.T @ torch.linalg.lstsq(known.T, features.T, driver="gelsd").solution
    return int(((found.T - features).norm(dim=1) < 1e-5 * features.norm(dim=1)).sum())


def test_hold_outs_and_means_over_seeds_give_no_single_feature(node: Node) -> None:
    """91 messages gave 22 of 22: hold-outs, seeds, numbers of means per class."""
    sums = []
    for seed in range(7):
        for means in (1, 2, 3, 4):
            for holdout in (0.0, 0.2, 0.25):
                request = question(StatisticsSpec(means_per_class=means), seed=seed, holdout=holdout)
                sums += [total for label, total in rows_of(node, request) if label == 0]

    assert num_learned(features_of(node, 0), sums) == 0


def test_floors_that_a_run_raises_give_no_single_feature(node: Node) -> None:
    generous, sums = {**node, "max-releases": 1000}, []
    for floor in range(12):
        for means in (2, 3, 4):
            request = question(StatisticsSpec(means_per_class=means))
            sums += [total for label, total in rows_of(generous, request, floor) if label == 0]

    assert num_learned(features_of(node, 0), sums) == 0


def add_ant(place: Path, number: int) -> None:
    site_folder(place / "more", ("ant",), seed=50 + number, images=1)
    shutil.move(place / "more" / "ant" / "0.png", place / "ant" / f"new{number}.png")
    shutil.rmtree(place / "more")


def test_changed_data_give_no_single_feature(node: Node) -> None:
    """One image more, one less, and every kind of question after each."""
    place, generous = Path(str(node["data-path"])), {**node, "max-releases": 1000}
    secret = features_of(node, 0)
    sums = []

    def learn() -> None:
        for means in (1, 3):
            for holdout in (0.0, 0.2):
                request = question(StatisticsSpec(means_per_class=means), holdout=holdout)
                sums.extend(total for label, total in rows_of(generous, request) if label == 0)

    learn()
    for number in range(4):
        add_ant(place, number)
        learn()
        (place / "ant" / f"{number}.png").unlink()
        learn()

    assert num_learned(secret, sums) == 0 and num_learned(features_of(node, 0), sums) == 0


def test_a_fresh_ledger_divides_the_same_data_in_the_same_way(node: Node, tmp_path: Path) -> None:
    """A state-dir that is lost, or the same data on another machine, must not give a second division to subtract."""
    request = question(StatisticsSpec(means_per_class=3), holdout=0.2)
    shutil.copytree(str(node["data-path"]), tmp_path / "copy")
    other = {"data-path": str(tmp_path / "copy"), "state-dir": str(tmp_path / "other")}

    first, second = rows_of(node, request), rows_of(other, request)
    assert len(first) == 6
    for (label, one), (same, two) in zip(first, second, strict=True):
        assert label == same and torch.equal(one, two)


@pytest.mark.parametrize("tune", ["probe", "full"])
def test_what_is_trained_on_is_what_the_statistics_are_of(node: Node, tune: str) -> None:
    """Or the server drops the training; also where images cannot be read."""
    place, config = Path(str(node["data-path"])) / "ant", NodeConfig.from_node_config(node)
    for number in range(3):
        (place / f"{number}.png").write_bytes(b"no image %d" % number)
    request = question(holdout=0.2)
    received = read_statistics_reply(ask(node, request.to_content()), request)
    task = TrainingRequest(2, tune, holdout=0.2, class_names=CLASSES)  # type: ignore[arg-type]

    assert received.num_examples == len(Site(CONFIG, config).samples(task, held_out=False)[1].labels)
    assert 44 - 3 - 2 * FLOOR <= received.num_examples < 44 - 2 * FLOOR + 1


def test_the_same_question_gets_the_same_bytes_in_every_run(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask(node, question(StatisticsSpec(gram=True)).to_content())

    monkeypatch.setattr(client_statistics, "statistics_above_floor", lambda *_, **__: pytest.fail("computed again"))
    for seed in (0, 1):
        again = ask(node, question(StatisticsSpec(gram=True), seed=seed).to_content(), run=2 + seed)
        assert content_digest(again.content) == content_digest(first.content)
    less = question()
    gram = question(StatisticsSpec(gram=True))
    rows = [read_statistics_reply(ask(node, one.to_content()), one).statistics.rows for one in (gram, less)]
    assert torch.equal(rows[0].class_sums, rows[1].class_sums)


def test_a_release_is_a_file_that_its_owner_can_read(node: Node, tmp_path: Path) -> None:
    request = question(holdout=0.2)
    received = read_statistics_reply(ask(node, request.to_content()), request)

    (path,) = (tmp_path / "state").glob("ledger-*/release-*.fedstats")
    assert path.stat().st_mode & 0o077 == 0 and read_release(path).digest == client_digest(received.statistics)


def test_a_release_that_was_moved_away_is_made_again(node: Node, tmp_path: Path) -> None:
    first = ask(node, question().to_content())
    (path,) = (tmp_path / "state").glob("ledger-*/release-*.fedstats")
    path.unlink()

    assert sums_of(ask(node, question().to_content())) == sums_of(first) and path.is_file()


def test_no_release_with_a_class_under_the_floor_of_the_run_stands_in(node: Node) -> None:
    for image in sorted((Path(str(node["data-path"])) / "bee").iterdir())[10:]:
        image.unlink()
    one = {**node, "max-releases": 1}
    assert not ask(one, question().to_content()).has_error()

    assert "max-releases" in ask(one, question().to_content(), min_class_count=15).error.reason


class Crash(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("moment", ["write_release", "statistics_above_floor"])
def test_what_died_before_it_left_is_made_again(node: Node, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(client_statistics, moment, die)
        with pytest.raises(Crash):
            ask(node, question().to_content())
    assert not ask({**node, "max-releases": 1}, question().to_content()).has_error()


def test_so_many_releases_are_made_and_any_of_them_given_again(node: Node) -> None:
    few = {**node, "max-releases": 2}
    requests = [question(), question(wire_dtype="float32"), question(wire_dtype="float16")]

    replies = [ask(few, request.to_content()) for request in requests]

    assert [reply.has_error() for reply in replies] == [False, False, True]
    assert replies[2].error.reason.endswith("at most 2 releases (max-releases) of one version of its data")
    assert not ask(few, requests[0].to_content()).has_error()
    assert not ask({**few, "max-releases": 3}, requests[2].to_content()).has_error()


def sums_of(reply: Message) -> str:
    return content_digest({"sums": reply.content["statistics"]})


def metrics(reply: Message) -> dict[str, Any]:
    return dict(reply.content["metrics"])  # type: ignore[arg-type]


def test_few_new_samples_wait_and_as_many_as_the_floor_are_in_a_further_release(node: Node) -> None:
    place = Path(str(node["data-path"]))
    first = ask(node, question().to_content())
    for number in range(FLOOR - 1):
        add_ant(place, number)
    waiting = ask(node, question().to_content())

    assert content_digest({"sums": waiting.content["statistics"]}) == content_digest(
        {"sums": first.content["statistics"]}
    )
    assert metrics(waiting)["num-waiting"] == FLOOR - 1 and metrics(waiting)["made"] > 1.7e9
    add_ant(place, FLOOR - 1)
    more = ask(node, question().to_content())
    assert read_statistics_reply(more, question()).num_examples == 44 + FLOOR and "num-waiting" not in metrics(more)


def test_a_run_says_of_which_day_a_site_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = nodes_of(tmp_path, "ab", CLASSES, images=12)
    settings: dict[str, Any] = {"node_configs": [{**nodes[0], "client-name": "Nord"}, nodes[1]], "method": "fedncm"}
    simulate(tmp_path, **settings)
    assert "wait" not in capsys.readouterr().out
    add_ant(Path(str(nodes[0]["data-path"])), 0)
    forget()
    folder = simulate(tmp_path, **settings)
    said = f"as of {time.strftime('%d %B %Y', time.gmtime())}; 1 of its samples wait for a further release"
    out = capsys.readouterr().out.replace("\n  ", " ")
    assert f"site Nord: {said}" in out and said in (folder / "clients.jsonl").read_text()


def test_where_few_were_removed_the_owner_decides(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ask(node, question().to_content())
    (Path(str(node["data-path"])) / "bee" / "0.png").unlink()
    (Path(str(node["data-path"])) / "ant" / "1.png").rename(Path(str(node["data-path"])) / "bee" / "ant1.png")

    stands = ask(node, question().to_content())
    assert content_digest({"sums": stands.content["statistics"]}) == content_digest(
        {"sums": first.content["statistics"]}
    )
    reason = ask(node, question(wire_dtype="float32").to_content()).error.reason
    assert "changed by too few samples for a further release: its owner can allow it" in reason
    state = ["--state-dir", str(tmp_path / "state")]
    assert main(["node", "allow", *state]) == 0
    shown = capsys.readouterr().out
    assert "one of the data as they are tells of 1 of ant, 1 of bee" in shown
    assert main(["node", "allow", shown.split()[1].rstrip(":"), *state]) == 0
    assert main(["node", "allow", *state]) == 0 and capsys.readouterr().out.endswith("nothing waits\n")
    assert read_statistics_reply(ask(node, question().to_content()), question()).num_examples == 42


def test_a_gram_matrix_of_few_changed_samples_leaves_as_sums_of_classes(node: Node) -> None:
    """Ten new samples in two classes: their sums may leave, their products not."""
    wide, request = {**node, "min-gram-samples": 30}, question(StatisticsSpec(gram=True))
    whole = read_statistics_reply(ask(wide, request.to_content()), request).statistics
    for label in CLASSES:
        site_folder(Path(str(node["data-path"])) / "more", (label,), seed=9, images=FLOOR)
        for image in (Path(str(node["data-path"])) / "more" / label).iterdir():
            shutil.move(image, Path(str(node["data-path"])) / label / f"new{image.name}")
    shutil.rmtree(Path(str(node["data-path"])) / "more")

    later = read_statistics_reply(ask(wide, request.to_content()), request).statistics
    assert int(later.rows.num_examples) == 54 and not whole.completed and later.completed
    assert later.scatter is not None and len(later.scatter) == 0


def heads_message(number: int) -> RecordDict:
    head = LinearHead(torch.full((2, 32), float(number)), torch.zeros(2))
    return evaluation_content(question(holdout=0.25), {"x": head, "y": head})


def test_heads_are_counted_and_the_same_head_once(node: Node) -> None:
    small = {**node, "max-heads-scored": 2}

    replies = [ask(small, heads_message(number), "evaluate.heads") for number in (1, 1, 2, 3)]

    assert [reply.has_error() for reply in replies] == [False, False, False, True]
    assert "at most 2 different scored heads (max-heads-scored)" in replies[3].error.reason
    assert not ask({**small, "train": True}, heads_message(3), "evaluate.heads").has_error()


def test_another_run_configuration_is_another_question(node: Node) -> None:
    """It can raise the floor: many answers to one head, with a limit of one."""
    settings: list[dict[str, Any]] = [{}, {"min_class_count": 6}, {"min_class_count": 7}, {}]

    small = {**node, "max-heads-scored": 2}
    replies = [ask(small, heads_message(1), "evaluate.heads", **one) for one in settings]

    assert [reply.has_error() for reply in replies] == [False, False, True, False]


def test_by_default_a_node_scores_all_methods_and_no_trained_model(node: Node) -> None:
    heads = {name: LinearHead(torch.full((2, 32), float(k)), torch.zeros(2)) for k, name in enumerate(METHODS)}

    assert not ask(node, evaluation_content(question(holdout=0.25), heads), "evaluate.heads").has_error()
    for kind in ("evaluate.model", "train", "train.losses"):
        assert ask(node, training_message(1), kind).error.reason.startswith("RefusedByPolicy: training is off")
        assert not ask({**node, "train": True}, training_message(1), kind).has_error()


def training_message(number: int) -> RecordDict:
    values = {**to_values(TrainingRequest(2, "probe", holdout=0.25, class_names=CLASSES)), "server-round": number}
    state = {"head.weight": torch.zeros(2, 32), "head.bias": torch.zeros(2)}
    return RecordDict({"arrays": to_record(state), "fixed": to_record({}), "config": ConfigRecord(values)})


def test_without_a_place_to_write_a_node_answers_nothing_and_says_why(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    lost = {**node, "state-dir": str(tmp_path / "file" / "state")}

    for kind, content in (
        ("query.clients", RecordDict()),
        ("query.statistics", question().to_content()),
        ("evaluate.heads", heads_message(1)),
    ):
        reason = ask(lost, content, kind).error.reason
        assert reason.startswith("RefusedByPolicy: this node answers nothing, because it cannot write its ledger")
        assert str(tmp_path) not in reason


def test_a_ledger_of_version_0_1_keeps_its_facts(node: Node, tmp_path: Path) -> None:
    assert not ask(node, question().to_content()).has_error()
    (path,) = (tmp_path / "state").glob("ledger-*.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        for table in ("release", "layout", "sample", "spent"):
            connection.execute(f"drop table {table}")
        connection.execute("create table cell (number integer primary key)")
        connection.execute("create table layout (one integer primary key, key text, generation integer, cells blob)")
        connection.execute("create table spent (generation integer, kind text, question text)")
        connection.execute("insert into fact values ('dp-spent|0', '[\"question\", 0.5]')")
        connection.commit()

    assert not ask(node, question().to_content()).has_error() and LedgerFile(path).summary().noise == (0.5,)


def test_a_damaged_ledger_is_no_ledger(node: Node, tmp_path: Path) -> None:
    assert not ask(node, question().to_content()).has_error()
    (path,) = (tmp_path / "state").glob("ledger-*.sqlite")
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(os.urandom(4096))

    assert "cannot write its ledger" in ask(node, question(seed=3).to_content()).error.reason


@pytest.mark.parametrize("lost", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_lost_ledger(
    node: Node, tmp_path: Path, lost: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner, who did not delete it, would not know that a new account began."""
    assert not ask(node, question().to_content()).has_error() and "what it remembered is forgotten" not in caplog.text
    (path,) = (tmp_path / "state").glob("ledger-*.sqlite")
    lost(path)
    ledger_of.cache_clear()

    assert not ask(node, question().to_content()).has_error()
    assert f"the ledger of these data was {path} and is gone or empty: what it remembered is forgotten" in caplog.text


def test_the_first_run_says_how_much_is_held_out_unless_the_owner_does(node: Node, tmp_path: Path) -> None:
    def held_out(where: Mapping[str, object], share: float) -> int:
        everything, part = (
            read_statistics_reply(ask(where, one.to_content()), one).num_examples
            for one in (question(), question(holdout=share))
        )
        return everything - part

    assert [held_out(node, share) for share in (0.2, 0.5)] == [2 * FLOOR] * 2


@pytest.mark.parametrize("spelt", ["{}/", "{}/.", "{}/../site", "{}/../link", "another state-dir", "moved"])
def test_the_ledger_is_of_the_folder_however_it_is_named(node: Node, tmp_path: Path, spelt: str) -> None:
    """A fresh ledger would divide data anew that have changed, and the difference is of what was added."""
    one = {**node, "max-releases": 1}
    (tmp_path / "link").symlink_to(str(node["data-path"]))
    assert not ask(one, question().to_content()).has_error()
    if "{}" in spelt:
        one["data-path"] = spelt.format(node["data-path"])
    else:
        one["state-dir"] = str(tmp_path / spelt)
    if spelt == "moved":  # with the ledger in it
        shutil.move(tmp_path / "state", tmp_path / spelt)

    assert "max-releases" in ask(one, question(StatisticsSpec(gram=True)).to_content()).error.reason


def replaced(image: Path) -> None:
    """Put other content into a file, of the same size and time."""
    data, stat = bytearray(image.read_bytes()), image.stat()
    data[-40] ^= 1
    image.write_bytes(data)
    os.utime(image, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("kind", ["query.statistics", "evaluate.heads"])
@pytest.mark.parametrize("change", [Path.unlink, replaced])
def test_nothing_is_answered_of_data_that_change_while_they_are_read(
    node: Node, kind: str, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer would lack exactly the one sample, or hold another in its place."""
    asked = question(StatisticsSpec(gram=True)).to_content() if kind == "query.statistics" else heads_message(7)
    assert not ask(node, question().to_content()).has_error()
    images, draw = sorted((Path(str(node["data-path"])) / "ant").iterdir()), FeatureReader.blocks

    def read(*args: Any, **options: Any) -> Any:
        while images:
            change(images.pop())
        return draw(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(FeatureReader, "blocks", read)
        reason = ask(node, asked, kind).error.reason
    assert reason == "RefusedByPolicy: this node's data changed while they were read: ask again"
    assert not ask(node, asked, kind).has_error()  # of what is left


def test_a_file_replaced_at_the_same_size_and_time_is_noticed(node: Node) -> None:
    assert not ask(node, question().to_content()).has_error()
    replaced(Path(str(node["data-path"])) / "ant" / "3.png")
    other = question(StatisticsSpec(gram=True))

    assert "data changed by too few samples" in ask(node, other.to_content()).error.reason


def test_a_floor_that_a_run_raises_does_not_tell_how_many_samples_a_class_has(node: Node) -> None:
    said = {
        str(dict(ask(node, RecordDict(), "query.clients", min_class_count=floor).content["node"]))
        for floor in range(30)
    }
    assert len(said) == 1


def test_a_partition_keeps_no_ledger(tmp_path: Path) -> None:
    host = {"partition-id": 0, "num-partitions": 1, "state-dir": str(tmp_path / "state")}

    assert not ask(host, RecordDict(), "query.clients").has_error() and not (tmp_path / "state").exists()
