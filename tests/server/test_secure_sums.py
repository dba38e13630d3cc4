"""Runs with secure sums: heads of the survivors' sums, and what nodes refuse, through the whole app."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedstats_app import client_app
from fedstats_app.base.option import ConfigError
from fedstats_app.client.ledger import Ledger
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.grid.federation_options import FederationOptions
from fedstats_app.report.head_file import read_head
from fedstats_app.report.statistics_file import load_statistics
from fedstats_app.secure.masks import public_key
from fedstats_app.secure.plan import Entry, Plan
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics.secure_words import SecureLayout
from fedstats_app.strategies import secure_sums
from fedstats_app.wire.secure import shares_content, unmask_content
from tests.server.test_exact_sums import weights
from tests.support.simulation import clients, nodes_of, read_json, simulate, site_folder, with_keys

CLASSES = ("ant", "bee", "cat")
# At which message a client can be lost.
MESSAGES = ("secure_keys", "secure_shares", "secure_sums", "secure_unmask")
OPTIONS: dict[str, Any] = {"num_clients": 10, "nodes": 2, "partitioner": "iid", "test_dataset": "builtin"}


def dying(lost: set[int], at: str) -> Callable[[Message, Context], Message]:
    """A ClientApp of which some clients fail when a message of a type comes."""

    def app(msg: Message, context: Context) -> Message:
        if msg.metadata.message_type != f"query.{at}":
            return client_app.app(msg, context)
        asked = msg.content["clients"]["ids"]
        msg.content["clients"]["ids"] = [one for one in asked if one not in lost]
        reply = client_app.app(msg, context)
        for client in lost & {*asked}:
            reply.content["failed"][str(client)] = "killed"
        return reply

    return app


def test_the_heads_are_those_of_exact_sums_and_nobody_s_part_is_seen(tmp_path: Path) -> None:
    methods = {"method": "fedncm,fed3r,fedcgs,fedcof"}
    clear = simulate(tmp_path, **OPTIONS, **methods, exact_sums=True)
    masked = simulate(tmp_path, **OPTIONS, **methods, secure_sums="on", shuffle_seed=3)

    fedcof = [read_head(one / "heads" / "fedcof.safetensors")[0] for one in (masked, clear)]
    assert torch.allclose(fedcof[0].weight, fedcof[1].weight, rtol=0, atol=2e-3)
    assert weights(masked) | {"fedcof": b""} == weights(clear) | {"fedcof": b""}
    sent = {name: one["wire_bytes"] for name, one in read_json(masked, "results.json")["methods"].items()}
    assert sent["fedncm"] < sent["fed3r"] == sent["fedcgs"] == sent["fedcof"]  # each alone
    for one in clients(masked):
        assert (one["num_examples"], one["class_shares"], one["outcome"]) == (0, {}, "merged")
    lines = (masked / "disclosure.jsonl").read_text().splitlines()
    told = {entry["message"] for entry in map(json.loads, lines) if "message" in entry}
    assert told == {"query.clients", *(f"query.{name}" for name in MESSAGES)}


@pytest.mark.parametrize("at", MESSAGES)
def test_clients_lost_at_any_message_cost_their_samples_only(tmp_path: Path, at: str) -> None:
    lost = {2, 5, 9}
    folder = simulate(tmp_path, **OPTIONS, method="fedncm", secure_sums="on", app=dying(lost, at))
    kept = [one["client"] for one in clients(folder) if one["outcome"] == "merged"]
    # Whose words are in the sum is merged, also if it did not help to unmask it.
    assert kept == [one for one in range(10) if one not in lost or at == "secure_unmask"]
    gone = {one for one in range(10) if str(one) not in map(str, kept)}
    clear = simulate(tmp_path, **OPTIONS, method="fedncm", exact_sums=True, app=dying(gone, "statistics"))
    assert weights(folder) == weights(clear)


def test_secure_sums_are_not_extended(tmp_path: Path) -> None:
    folder = simulate(tmp_path, **OPTIONS, method="fedncm", secure_sums="on")
    with pytest.raises(ValueError, match="one that comes again would count twice; run again with all clients"):
        simulate(tmp_path, **OPTIONS, method="fedncm", exact_sums=True, extend=str(folder))


def test_a_class_that_losses_leave_with_two_holders_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The sum begins anew without it, before anything is unmasked; classes of few from the start are in none."""
    skewed = {**OPTIONS, "partitioner": "dirichlet", "dirichlet_alpha": 0.1, "method": "fedncm"}
    shares = {one["client"]: one["class_shares"] for one in clients(simulate(tmp_path, **skewed, exact_sums=True))}

    def holders(name: str, some: Iterable[int]) -> int:
        return sum(name in shares[one] for one in some)

    lost = next(  # of whom some class had one too many
        set(some)
        for some in itertools.combinations(range(10), 3)
        if any(holders(name, range(10)) >= 3 > holders(name, set(range(10)) - set(some)) for name in shares[0])
    )
    folder = simulate(tmp_path, **skewed, secure_sums="on", app=dying(lost, "secure_sums"))

    names, summed = load_statistics(folder).class_names, load_statistics(folder).total.summed()
    every, left = ({name: holders(name, some) for name in names} for some in (range(10), set(range(10)) - lost))
    assert [name for name, count in zip(names, summed.class_counts.tolist(), strict=True) if count] == [
        name for name in names if left[name] >= 3
    ]
    assert min(left.values()) < 3 <= max(left.values())
    few = [name for name in names if every[name] < 3]
    assert not few or f"leave out classes that fewer than 3 clients have: {', '.join(few)}" in caplog.text
    assert "the sum begins anew: clients were lost" in caplog.text


def test_of_too_few_nothing_is_unmasked(tmp_path: Path) -> None:
    with pytest.raises(TooFewClients, match="6 of 10 clients are left, secure sums need 7 of them: nothing was"):
        simulate(tmp_path, **OPTIONS, method="fedncm", secure_sums="on", app=dying({1, 2, 3, 4}, "secure_sums"))


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("method", "fedroot", "fedroot sends factors, which stack and do not add up: take fed3r"),
        ("fine_tune", "probe", "fine-tune must be none"),
        ("save_statistics", "clients", "save-statistics must be sum or none"),
        ("extend", "/x", "extend must be empty"),
        ("min_class_count", 5, "min-class-count must be 0"),
        ("resume", "/x", "resume must be empty"),
    ],
)
def test_what_needs_single_clients_is_refused_by_name(tmp_path: Path, setting: str, value: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"secure-sums: {reason}"):
        simulate(tmp_path, **{"method": "fedncm", "secure_sums": "on", setting: value})


def test_a_key_without_peers_is_refused() -> None:
    with pytest.raises(ConfigError, match="secure-key goes with secure-peers"):
        NodeConfig.from_node_config({"data-path": "/x", "secure-key": "/k"})


# Nodes with data of their own


def sites(tmp_path: Path, names: str = "abcdef", **options: object) -> list[Mapping[str, object]]:
    return nodes_of(tmp_path, names, CLASSES, images=6, **{"secure_min_clients": 3, **options})


OWN: dict[str, Any] = {"method": "fedncm,fed3r", "secure_sums": "on", "max_client_samples": 1000, "min_clients": 3}
FEDNCM = {**OWN, "method": "fedncm"}
# The same for all reasons; the log has the one.
REFUSED = r"this client gives nothing to this sum; the reason is in its log, and `fedstats node allow` shows what waits"
WAITS = "a sum over other clients or data than before waits for this node's owner"


def refused(
    caplog: pytest.LogCaptureFixture, nodes: Sequence[Mapping[str, object]], reason: str, **options: Any
) -> None:
    """A run to which nodes give nothing, for a reason that only their logs tell."""
    caplog.clear()
    with pytest.raises(TooFewClients, match=REFUSED) as error:
        simulate(**options, node_configs=list(nodes), **FEDNCM)
    assert reason in caplog.text and reason not in str(error.value)


def test_nodes_that_require_secure_sums_send_nothing_else(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    with pytest.raises(TooFewClients, match=r"takes part in secure sums only \(secure-min-clients\)"):
        simulate(tmp_path, node_configs=nodes, method="fedncm")
    assert [one["outcome"] for one in clients(simulate(tmp_path, node_configs=nodes, **FEDNCM))] == ["merged"] * 6


def test_three_sites_are_enough_unless_an_owner_wants_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = simulate(tmp_path, node_configs=sites(tmp_path, "abc"), **FEDNCM)
    assert [one["outcome"] for one in clients(folder)] == ["merged"] * 3
    nodes = sites(tmp_path / "more", "abcd")
    nodes[0] = {**nodes[0], "secure-min-clients": 4}
    with pytest.raises(TooFewClients, match="3 of 4 clients are left, secure sums need 4 of them"):
        simulate(tmp_path, node_configs=nodes, **FEDNCM, app=killed_at("secure_sums", "d"))
    assert "Traceback" not in caplog.text
    with pytest.raises(TooFewClients, match=r"got 2; client \d+: its owner wants 4 clients in a sum .* 3 take part"):
        simulate(tmp_path, node_configs=nodes[:3], **FEDNCM)


def killed_at(message: str, *names: str) -> Callable[[Message, Context], Message]:
    """A ClientApp whose nodes of these names are lost at a message."""

    def app(msg: Message, context: Context) -> Message:
        name = Path(str(context.node_config["data-path"])).name
        if msg.metadata.message_type == f"query.{message}" and name in names:
            return Message(Error(100, "killed"), reply_to=msg)
        return client_app.app(msg, context)

    return app


def test_a_second_sum_less_one_client_waits_for_the_owners(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = sites(tmp_path)
    first = simulate(tmp_path, node_configs=nodes, **FEDNCM)
    assert weights(simulate(tmp_path, node_configs=nodes, **FEDNCM)) == weights(first)  # the same set, the same sum
    refused(caplog, nodes[:5], WAITS, tmp_path=tmp_path)
    caplog.clear()
    with pytest.raises(TooFewClients, match=REFUSED):
        simulate(tmp_path, node_configs=nodes, **FEDNCM, app=killed_at("secure_sums", "f"))
    assert WAITS in caplog.text

    files = [Ledger(AppConfig(), NodeConfig.from_node_config(node))._file for node in nodes]
    for file in files[:5]:
        ((name, text),) = file.among("secure-waits").items()
        assert text == "with earlier sums it tells what fewer than 3 clients have of ant, bee, cat"
        file.fact(name.replace("waits", "allowed"), "")
    simulate(tmp_path, node_configs=nodes[:5], **FEDNCM)
    refused(caplog, nodes[:4], WAITS, tmp_path=tmp_path)


@pytest.mark.parametrize("at", MESSAGES)
def test_a_failed_attempt_leaves_nothing_behind(tmp_path: Path, at: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of three sites one is killed: one sentence, and it works again when the site is back, or with another."""
    nodes = sites(tmp_path, "abcd")
    with pytest.raises(TooFewClients, match="killed") as error:
        simulate(tmp_path, node_configs=nodes[:3], **FEDNCM, app=killed_at(at, "c"))
    assert "\n" not in str(error.value) and "Traceback" not in caplog.text
    if at == "secure_unmask":  # by then two have given their shares
        simulate(tmp_path, node_configs=nodes[:3], **FEDNCM)
        return
    simulate(tmp_path, node_configs=[*nodes[:2], nodes[3]], **FEDNCM)


def test_four_sums_that_give_one_client_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each two differ by three clients or more, and only three of the last ten know of the three before it."""
    nodes = sites(tmp_path, "abcdefghix", secure_min_clients=3)
    for taken in (slice(0, 3), slice(0, 6), None):
        simulate(tmp_path, node_configs=nodes[taken] if taken else nodes[:3] + nodes[6:9], **FEDNCM)
    refused(caplog, nodes, WAITS, tmp_path=tmp_path)
    refused(caplog, nodes[3:], WAITS, tmp_path=tmp_path)


def test_a_server_that_hides_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a, b, c and of d, e, f, and then of all and x: no site of the last run knows of both of the others."""
    nodes = sites(tmp_path, "abcdefx")
    for some in (nodes[:3], nodes[3:6]):
        simulate(tmp_path, node_configs=some, **FEDNCM)
    refused(caplog, nodes, WAITS, tmp_path=tmp_path)
    monkeypatch.setattr(secure_sums, "shares_content", lambda plan, sets: shares_content(plan, sets[1:]))
    with pytest.raises(TooFewClients, match="sets: must be those of all earlier sums that the parties name"):
        simulate(tmp_path, node_configs=nodes, **FEDNCM)

    def forgetting(plan: Plan, sets: list[bytes]) -> RecordDict:
        """Leave them out of the entries too."""
        return shares_content(replace(plan, parties=tuple(replace(own, earlier=()) for own in plan.parties)), [])

    monkeypatch.setattr(secure_sums, "shares_content", forgetting)
    refused(caplog, nodes, "keys of this run are not among those", tmp_path=tmp_path)


def test_a_second_sum_after_one_client_s_data_changed_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else the difference of both is what changed; if enough of them changed, it is of all these."""
    nodes = sites(tmp_path)
    simulate(tmp_path, node_configs=nodes, **FEDNCM)
    for number, node in enumerate(nodes):
        if number in (1, 5):  # one client's data, and all but one's
            refused(caplog, nodes, WAITS, tmp_path=tmp_path)
        more = site_folder(tmp_path / f"more-{number}", CLASSES, seed=100 + number, images=6)
        for picture in Path(more).glob("*/*.png"):
            picture.rename(Path(str(node["data-path"])) / picture.parent.name / f"new-{picture.name}")
    simulate(tmp_path, node_configs=nodes, **FEDNCM)


def test_data_that_change_in_a_run_are_not_summed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = sites(tmp_path)

    def adding(msg: Message, context: Context) -> Message:
        if msg.metadata.message_type == "query.secure_sums" and str(context.node_config["data-path"]).endswith("f"):
            site_folder(tmp_path / "f" / "new", CLASSES, seed=9, images=6)
            for picture in (tmp_path / "f" / "new").glob("*/*.png"):
                picture.rename(tmp_path / "f" / picture.parent.name / f"new-{picture.name}")
            shutil.rmtree(tmp_path / "f" / "new")
        return client_app.app(msg, context)

    folder = simulate(tmp_path, node_configs=nodes, **FEDNCM, app=adding)
    assert [one["outcome"] for one in clients(folder)].count("merged") == 5
    assert "data changed since this run of masks began" in caplog.text


def test_unreadable_images_take_a_class_under_its_floor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others count on it as one of three that have the class."""
    nodes = sites(tmp_path, "abcd")
    for picture in sorted((tmp_path / "d" / "bee").glob("*.png"))[:2]:
        picture.write_bytes(picture.read_bytes()[:60])
    folder = simulate(tmp_path, node_configs=nodes, **FEDNCM)
    assert load_statistics(folder).total.summed().class_counts.tolist() == [18] * 3
    assert "images that cannot be read leave a class with too few samples" in caplog.text


def test_a_run_cannot_raise_the_floor_of_class_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go in clear: a server would learn the size of each class by bisection."""
    monkeypatch.setattr(FederationOptions, "conflicts", lambda self, config: ())
    with pytest.raises(TooFewClients, match="class lists leave this node by its owner's rules alone: min-class-count"):
        simulate(tmp_path, node_configs=sites(tmp_path), **FEDNCM, min_class_count=8)


# Sites that know each other's keys


def peers(tmp_path: Path, *, known: int | None = None) -> list[dict[str, object]]:
    """Make six sites with a key each, who know the keys of some."""
    nodes = [dict(node) for node in sites(tmp_path)]
    with_keys(tmp_path, nodes, known=known)
    return nodes


def test_peers_give_the_sums_that_others_give(tmp_path: Path) -> None:
    nodes = peers(tmp_path)
    signed = simulate(tmp_path, node_configs=nodes, **FEDNCM)
    for node in nodes:
        node |= {"secure-key": "", "secure-peers": ""}
    assert weights(signed) == weights(simulate(tmp_path, node_configs=nodes, **FEDNCM))


@pytest.mark.parametrize(
    "change",
    [
        {"channel": public_key(bytes(range(32)))},
        {"classes": b"\xc0"},
        {"least": 3},
        {"earlier": ()},
        {"identity": bytes(16)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_the_server_put_in_place_of_a_peer_s_entry_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: dict[str, Any]
) -> None:
    nodes = peers(tmp_path)
    nodes[0]["secure-min-clients"] = 4
    simulate(tmp_path, node_configs=nodes, **FEDNCM)

    def different(run: Any, entries: Mapping[int, Entry]) -> dict[int, Entry]:
        first = min(entries)
        return {**entries, first: replace(entries[first], **change)}

    monkeypatch.setattr(secure_sums.MaskedRun, "different", different)
    monkeypatch.setattr(secure_sums, "shares_content", lambda plan, sets: shares_content(plan, sets))
    refused(caplog, nodes, "the entry of a party is not signed by it", tmp_path=tmp_path)


def test_an_entry_of_another_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that asks one peer for the Gram matrix and the others for class sums."""
    nodes, to_all = peers(tmp_path), secure_sums.to_all

    def two_faced(content: RecordDict, kind: str, asked: Iterable[int]) -> list[Message]:
        messages = to_all(content, kind, asked)
        if kind == "query.secure_keys":
            text = json.loads(str(content["question"]["question"]))  # type: ignore[index]
            other = RecordDict({**content, "question": ConfigRecord({"question": json.dumps(text, indent=1)})})
            messages[0] = to_all(other, kind, [int(messages[0].metadata.dst_node_id)])[0]
        return messages

    monkeypatch.setattr(secure_sums, "to_all", two_faced)
    refused(caplog, nodes, "the entry of a party is not signed by it", tmp_path=tmp_path)


def test_who_is_no_peer_takes_no_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes, reason = peers(tmp_path, known=5), "not among this node's secure-peers, or takes part twice"
    refused(caplog, nodes, reason, tmp_path=tmp_path)
    (tmp_path / "0.pem").write_bytes((tmp_path / "1.pem").read_bytes())
    refused(caplog, nodes[:5], reason, tmp_path=tmp_path)
    (tmp_path / "peers").write_text("site a: 00")
    with pytest.raises(TooFewClients, match="this node cannot read its secure-key or secure-peers; the reason is in"):
        simulate(tmp_path, node_configs=nodes, **FEDNCM)


def test_one_list_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[int] = []

    def two_faced(plan: Plan, turn: int, active: list[int], survivors: list[int], *rest: bytes) -> RecordDict:
        asked.append(1)
        return unmask_content(plan, turn, active, survivors if len(asked) % 6 < 3 else survivors[:-1], *rest)

    monkeypatch.setattr(secure_sums, "unmask_content", two_faced)
    refused(caplog, peers(tmp_path), "4 clients must have signed the list of survivors, got", tmp_path=tmp_path)


def test_a_peer_with_another_s_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sum with e less the sum with f in its place would be e's numbers, for f and a server that work together."""
    nodes, identities = peers(tmp_path), {}

    def identity(ledger: Ledger, **options: bool) -> bytes:
        name = Path(ledger._node.data_path).name
        identities[name] = honest(ledger, **options)
        return identities["e" if name == "f" and "e" in identities else name]

    honest = Ledger.identity
    monkeypatch.setattr(Ledger, "identity", identity)
    simulate(tmp_path, node_configs=nodes[:5], **FEDNCM)
    others, reason = nodes[:4] + nodes[5:], "says its data are those of another of this node's secure-peers"
    refused(caplog, others, reason, tmp_path=tmp_path)
    # As if e had another key now, and all had put it in place of the old one.
    lines = (tmp_path / "peers").read_text().splitlines()
    (tmp_path / "peers").write_text("\n".join(line for line in lines if not line.startswith("site 4")))
    simulate(tmp_path, node_configs=others, **FEDNCM)


# Classes of few, canaries


def test_a_run_of_too_few_classes_ends_before_anything_is_summed(tmp_path: Path) -> None:
    nodes = [*sites(tmp_path, "ab"), *nodes_of(tmp_path, "c", ("ant", "dog"), images=6, secure_min_clients=3)]
    with pytest.raises(TooFewClients, match="fewer than 3 clients have: bee, cat, dog; fewer than two are left"):
        simulate(tmp_path, node_configs=nodes, **FEDNCM)


def test_a_class_of_two_holders_is_in_no_sum_and_named_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = sites(tmp_path, "abcd") + nodes_of(tmp_path, "ef", (*CLASSES, "dog"), images=6, secure_min_clients=3)
    found = load_statistics(simulate(tmp_path, node_configs=nodes, **FEDNCM))
    counts = found.total.summed().class_counts.tolist()
    assert dict(zip(found.class_names, counts, strict=True)) == {"ant": 36, "bee": 36, "cat": 36, "dog": 0}
    assert "secure sums leave out classes that fewer than 3 clients have: dog" in caplog.text


def test_a_client_s_numbers_are_in_no_file_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary: the words of one client before they are masked."""
    seen: list[bytes] = []
    honest = SecureLayout.words

    def noted(self: SecureLayout, *args: Any) -> Any:
        words = honest(self, *args)
        size = self.shapes(10)[1][1]
        seen.append(words[1].view(np.uint8).reshape(-1, 8)[:16, :size].tobytes())
        return words

    monkeypatch.setattr(SecureLayout, "words", noted)
    folder = simulate(tmp_path, **OPTIONS, method="fedncm", secure_sums="on")
    assert len(seen) == 10
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not any(canary in content for canary in seen), path
