"""Runs with secure sums: heads of the survivors' sums, and what nodes refuse, through the whole app."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Context, Error, Message, RecordDict

from fedstats_app import client_app
from fedstats_app.base.option import ConfigError
from fedstats_app.client.ledger import Ledger
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.report.head_file import read_head
from fedstats_app.report.statistics_file import load_statistics
from fedstats_app.secure.masks import public_key
from fedstats_app.secure.plan import Plan, PublicKeys
from fedstats_app.server.run import Run
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics.secure_words import SecureLayout
from fedstats_app.strategies import secure_sums
from fedstats_app.wire.secure import keys_reader, shares_content, unmask_content
from tests.server.test_exact_sums import weights
from tests.support.simulation import clients, nodes_of, read_json, simulate, site_folder

CLASSES = ("ant", "bee", "cat")
# At which message a client can be lost.
MESSAGES = ("secure_keys", "secure_shares", "secure_sums", "secure_unmask")
OPTIONS: dict[str, Any] = {"num_clients": 10, "nodes": 2, "partitioner": "iid", "test_dataset": "builtin"}


def without(found: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {one: data for one, data in found.items() if one != name}


def dying(lost: set[int], at: str, number: int) -> Callable[[Message, Context], Message]:
    """A ClientApp of which some clients fail at the given time that a message of a type comes."""
    came: dict[int, int] = {}

    def app(msg: Message, context: Context) -> Message:
        if msg.metadata.message_type == f"query.{at}":
            for client in msg.content["clients"]["ids"]:
                came[client] = came.get(client, 0) + 1
            gone = [one for one in msg.content["clients"]["ids"] if one in lost and came[one] >= number]
            stay = [one for one in msg.content["clients"]["ids"] if one not in gone]
            msg.content["clients"]["ids"] = stay
            reply = client_app.app(msg, context)
            for client in gone:
                reply.content["failed"][str(client)] = "killed"
            return reply
        return client_app.app(msg, context)

    return app


def test_the_heads_are_those_of_exact_sums_and_nobody_s_part_is_seen(tmp_path: Path) -> None:
    methods = {"method": "fedncm,fed3r,fedcgs,fedcof"}
    clear = simulate(tmp_path, **OPTIONS, **methods, exact_sums=True)
    masked = simulate(tmp_path, **OPTIONS, **methods, secure_sums="exact", shuffle_seed=3)
    near = simulate(tmp_path, **{**OPTIONS, "nodes": 1}, method="all", secure_sums="on")

    fedcof = [read_head(one / "heads" / "fedcof.safetensors")[0] for one in (masked, clear)]
    assert torch.allclose(fedcof[0].weight, fedcof[1].weight, rtol=0, atol=1e-6)
    assert without(weights(masked), "fedcof") == without(weights(clear), "fedcof")
    found, usual = (read_json(one, "results.json")["methods"] for one in (near, clear))
    assert set(found) == {"fedncm", "fed3r", "fedcgs"}  # of all methods those whose statistics add up
    assert weights(near)["fedncm"] == weights(clear)["fedncm"]
    for name in found:
        assert abs(found[name]["accuracy"] - usual[name]["accuracy"]) <= 0.0041  # one of 250 samples
    for one in clients(masked):
        assert (one["num_examples"], one["class_shares"], one["outcome"]) == (0, {}, "merged")
    lines = (masked / "disclosure.jsonl").read_text().splitlines()
    sent = {entry["message"] for entry in map(json.loads, lines) if "message" in entry}
    assert sent == {"query.clients", *(f"query.{name}" for name in MESSAGES)}


@pytest.mark.parametrize(
    ("at", "number"), [("secure_keys", 1), ("secure_shares", 1), ("secure_sums", 2), ("secure_unmask", 2)]
)
def test_clients_lost_at_any_message_cost_their_samples_only(tmp_path: Path, at: str, number: int) -> None:
    lost = {2, 5, 9}
    folder = simulate(tmp_path, **OPTIONS, method="fedncm", secure_sums="on", app=dying(lost, at, number))
    kept = [one["client"] for one in clients(folder) if one["outcome"] == "merged"]
    # Whose words are in the sum is merged, also if it did not help to unmask it.
    assert kept == [one for one in range(10) if one not in lost or (at, number) == ("secure_unmask", 2)]
    gone = {str(one) for one in range(10) if one not in kept}
    clear = simulate(
        tmp_path, **OPTIONS, method="fedncm", exact_sums=True, app=dying({int(one) for one in gone}, "statistics", 1)
    )
    assert weights(folder) == weights(clear)


@pytest.mark.parametrize("number", [2, 3])
def test_fedcof_is_about_what_it_was_if_clients_are_lost_at_its_sums_or_at_their_spread(
    tmp_path: Path, number: int
) -> None:
    runs = [
        simulate(tmp_path, **OPTIONS, method="fedcof", secure_sums="on", app=dying(lost, "secure_sums", number))
        for lost in (set(), {2, 5, 9})
    ]
    whole, left = (read_json(one, "results.json")["methods"]["fedcof"]["accuracy"] for one in runs)
    assert [one["outcome"] for one in clients(runs[1])].count("merged") == {2: 7, 3: 10}[number]
    assert whole > 0.2 and abs(whole - left) < 0.05
    heads = [read_head(one / "heads" / "fedcof.safetensors")[0].weight for one in runs]
    assert not torch.equal(*heads)


def test_secure_sums_are_not_extended(tmp_path: Path) -> None:
    folder = simulate(tmp_path, **OPTIONS, method="fedncm", secure_sums="on")
    with pytest.raises(ValueError, match="one that comes again would count twice; run again with all clients"):
        simulate(tmp_path, **OPTIONS, method="fedncm", exact_sums=True, extend=str(folder))


def test_classes_of_which_too_few_holders_may_be_left_are_left_out_when_clients_are_lost(
    tmp_path: Path,
) -> None:
    """Nobody knows which classes the lost ones had: any class of fewer than six clients might be left with two."""
    skewed = {**OPTIONS, "partitioner": "dirichlet", "dirichlet_alpha": 0.1, "method": "fedncm"}
    clear = simulate(tmp_path, **skewed, exact_sums=True)
    shares = [one["class_shares"] for one in clients(clear)]
    folder = simulate(tmp_path, **skewed, secure_sums="on", app=dying({2, 5, 9}, "secure_sums", 2))

    names, summed = load_statistics(folder).class_names, load_statistics(folder).total.summed()
    holders = {name: sum(name in of_client for of_client in shares) for name in names}
    assert min(holders.values()) < 6 <= max(holders.values())
    assert [name for name, count in zip(names, summed.class_counts.tolist(), strict=True) if count] == [
        name for name in names if holders[name] >= 6
    ]


def test_of_too_few_nothing_is_unmasked(tmp_path: Path) -> None:
    with pytest.raises(TooFewClients, match="6 of 10 clients are left, secure sums need 7 of them: nothing more was"):
        simulate(tmp_path, **OPTIONS, method="fedncm", secure_sums="on", app=dying({1, 2, 3, 4}, "secure_sums", 1))


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("method", "fedroot", "fedroot sends factors, which stack and do not add up: take fed3r"),
        ("fine_tune", "probe", "fine-tune must be none"),
        ("personalise", "all", "personalise must be none"),
        ("fraction_train", 0.5, "fraction-train must be 1,"),
        ("save_statistics", "clients", "save-statistics must be sum or none"),
        ("extend", "/x", "extend must be empty"),
        ("resume", "/x", "resume must be empty"),
    ],
)
def test_what_needs_single_clients_is_refused_by_name(tmp_path: Path, setting: str, value: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"secure-sums: {reason}"):
        simulate(tmp_path, **{"method": "fedncm", "secure_sums": "on", setting: value})


def test_a_sum_out_of_its_range_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client sends -1,000 samples of a class, which no one can see in its masked words."""
    sums, came = SecureLayout.sums, []

    def lying(self: SecureLayout, *args: Any) -> Any:
        words = sums(self, *args)
        came.append(1)
        if len(came) == 1:
            words[0][0] -= np.uint64(1000)
        return words

    monkeypatch.setattr(SecureLayout, "sums", lying)
    with pytest.raises(ValueError, match="a sum is out of its range: a class has fewer than 0 samples"):
        simulate(tmp_path, **OPTIONS, method="fedncm", secure_sums="on")


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"data-path": "release:/x", "secure-min-clients": 3}, "a release leaves in clear: it excludes secure-min-cl"),
        ({"data-path": "/x", "secure-key": "/k"}, "secure-key goes with secure-peers"),
    ],
)
def test_what_an_owner_cannot_ask_for(node: Mapping[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        NodeConfig.from_node_config(node)


# Nodes with data of their own


def sites(tmp_path: Path, names: str = "abcdef", **options: object) -> list[Mapping[str, object]]:
    return nodes_of(tmp_path, names, CLASSES, images=6, **{"secure_min_clients": 3, **options})


OWN: dict[str, Any] = {"method": "fedncm,fed3r", "secure_sums": "on", "max_client_samples": 1000, "min_clients": 3}
FEDNCM = {**OWN, "method": "fedncm"}
ANOTHER_SUM = "with earlier sums over other clients this one would give a sum of fewer"


def test_nodes_that_require_secure_sums_send_nothing_else(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    with pytest.raises(TooFewClients, match=r"takes part in secure sums only \(secure-min-clients\)"):
        simulate(tmp_path, node_configs=nodes, method="fedncm")
    folder = simulate(tmp_path, node_configs=nodes, **FEDNCM)
    assert [one["outcome"] for one in clients(folder)] == ["merged"] * 6


def test_three_sites_are_enough_unless_an_owner_wants_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = simulate(tmp_path, node_configs=sites(tmp_path, "abc"), **FEDNCM)
    assert [one["outcome"] for one in clients(folder)] == ["merged"] * 3
    nodes = [{**node, "secure-min-clients": 4} for node in sites(tmp_path / "more", "abc")]
    caplog.clear()
    with pytest.raises(TooFewClients, match=r"; 3 clients: .*: 3 clients take part, secure-min-clients of this node's"):
        simulate(tmp_path, node_configs=nodes, **FEDNCM)
    assert "Traceback" not in caplog.text


def test_a_second_sum_less_one_client_is_refused(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    simulate(tmp_path, node_configs=nodes, **FEDNCM)
    simulate(tmp_path, node_configs=nodes, **FEDNCM)  # of the same clients again
    with pytest.raises(TooFewClients, match=ANOTHER_SUM):
        simulate(tmp_path, node_configs=nodes[:5], **FEDNCM)


def killed_at(words: int) -> Callable[[Message, Context], Message]:
    """A ClientApp whose node f is lost when it is asked for words so many times."""
    came: list[int] = []

    def app(msg: Message, context: Context) -> Message:
        if msg.metadata.message_type == "query.secure_sums" and str(context.node_config["data-path"]).endswith("f"):
            came.append(1)
            if len(came) == words:
                return Message(Error(100, "killed"), reply_to=msg)
        return client_app.app(msg, context)

    return app


def test_the_scatter_of_all_but_one_is_not_summed_after_an_exact_gram_matrix_of_all(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    simulate(tmp_path, node_configs=nodes, **{**OWN, "secure_sums": "exact"})
    with pytest.raises(TooFewClients, match=ANOTHER_SUM):
        simulate(tmp_path, node_configs=nodes, **OWN, app=killed_at(3))


@pytest.mark.parametrize("stops", [True, False])
def test_after_a_client_is_lost_between_two_products_the_first_alone_counts(
    stops: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both products together would tell of the client that is in one: a server that goes on is refused."""
    nodes, summed = sites(tmp_path), secure_sums.MaskedRun.summed
    first = simulate(tmp_path, node_configs=nodes, **{**OWN, "secure_sums": "means-1"})
    if not stops:
        monkeypatch.setattr(secure_sums.MaskedRun, "summed", lambda self, *asked, over=(): summed(self, *asked))
    both = simulate(tmp_path, node_configs=nodes, **{**OWN, "secure_sums": "means-2"}, app=killed_at(4))
    assert weights(both) == weights(first)
    said = "lost between two sums that must be of the same" if stops else "with earlier sums over other clients"
    assert said in caplog.text


def test_four_sums_that_together_give_one_client_are_not_all_unmasked(tmp_path: Path) -> None:
    """Each two differ by three clients or more, and only three of the last ten know of the three before it."""
    nodes = sites(tmp_path, "abcdefghix", secure_min_clients=3)
    for taken in (slice(0, 3), slice(0, 6), None):
        simulate(tmp_path, node_configs=nodes[taken] if taken else nodes[:3] + nodes[6:9], **FEDNCM)
    with pytest.raises(TooFewClients, match=ANOTHER_SUM):
        simulate(tmp_path, node_configs=nodes, **FEDNCM)
    with pytest.raises(TooFewClients, match=ANOTHER_SUM):
        simulate(tmp_path, node_configs=nodes[3:], **FEDNCM)


def test_a_second_sum_after_one_client_s_data_changed_is_refused(tmp_path: Path) -> None:
    """Else the difference of both is what changed; if enough of them changed, it is of all these."""
    nodes = sites(tmp_path)
    simulate(tmp_path, node_configs=nodes, **FEDNCM)
    for number, node in enumerate(nodes):
        if number in (1, 5):  # one client's data, and all but one's
            with pytest.raises(TooFewClients, match=ANOTHER_SUM):
                simulate(tmp_path, node_configs=nodes, **FEDNCM)
        more = site_folder(tmp_path / f"more-{number}", CLASSES, seed=100 + number, images=6)
        for picture in Path(more).glob("*/*.png"):
            picture.rename(Path(str(node["data-path"])) / picture.parent.name / f"new-{picture.name}")
    simulate(tmp_path, node_configs=nodes, **FEDNCM)


def test_data_that_change_between_two_sums_are_not_summed_as_what_they_were(tmp_path: Path) -> None:
    nodes, came = sites(tmp_path), []

    def adding(msg: Message, context: Context) -> Message:
        if msg.metadata.message_type == "query.secure_sums" and str(context.node_config["data-path"]).endswith("f"):
            came.append(1)
            if len(came) == 2:  # after presence
                site_folder(tmp_path / "f" / "new", CLASSES, seed=9, images=6)
                for picture in (tmp_path / "f" / "new").glob("*/*.png"):
                    picture.rename(tmp_path / "f" / picture.parent.name / f"new-{picture.name}")
                shutil.rmtree(tmp_path / "f" / "new")
        return client_app.app(msg, context)

    folder = simulate(tmp_path, node_configs=nodes, **FEDNCM, app=adding)
    failed = [one for one in clients(folder) if one["outcome"] != "merged"]
    assert len(failed) == 1 and "data changed since this run of masks began" in failed[0]["reason"]


@pytest.mark.parametrize("other", ["min-class-count", "hold-out"])
def test_a_second_sum_of_other_samples_of_the_same_clients_is_refused(
    tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a floor of 8 it would lack one client's classes of 6 alone: two sums would give them."""
    nodes = nodes_of(tmp_path, "abcde", CLASSES, images=12, secure_min_clients=3) + sites(tmp_path, "f")
    simulate(tmp_path, node_configs=nodes, **FEDNCM)
    if other == "hold-out":
        monkeypatch.setattr(Run, "holdout", 0.5)
    with pytest.raises(TooFewClients, match="are summed by other rules"):
        simulate(tmp_path, node_configs=nodes, **FEDNCM, min_class_count=8 if other == "min-class-count" else 0)


def test_a_history_without_a_client_s_sums_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = sites(tmp_path)
    simulate(tmp_path, node_configs=nodes, **FEDNCM)
    monkeypatch.setattr(secure_sums, "shares_content", lambda plan, history: shares_content(plan, history[1:]))
    with pytest.raises(TooFewClients, match="sums that this client was in before are left out of the history"):
        simulate(tmp_path, node_configs=nodes, **FEDNCM)


# Sites that know each other's keys


def peers(tmp_path: Path, *, known: str = "abcdef") -> list[dict[str, object]]:
    """Make six sites with a key each, who know the keys of some."""
    nodes = [dict(node) for node in sites(tmp_path)]
    keys = {name: Ed25519PrivateKey.generate() for name in "abcdef"}
    lines = [f"site {name}: {keys[name].public_key().public_bytes_raw().hex()}" for name in known]
    (tmp_path / "peers").write_text("\n".join(lines))
    for (name, key), node in zip(keys.items(), nodes, strict=True):
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (tmp_path / f"{name}.pem").write_bytes(pem)
        node |= {"secure-key": str(tmp_path / f"{name}.pem"), "secure-peers": str(tmp_path / "peers")}
    return nodes


def test_peers_give_the_sums_that_others_give(tmp_path: Path) -> None:
    nodes = peers(tmp_path)
    signed = simulate(tmp_path, node_configs=nodes, **FEDNCM)
    for node in nodes:
        node |= {"secure-key": "", "secure-peers": ""}
    assert weights(signed) == weights(simulate(tmp_path, node_configs=nodes, **FEDNCM))


def strange(one: PublicKeys) -> PublicKeys:
    return replace(one, channel=public_key(bytes(range(32))))


def test_keys_that_the_server_put_in_place_of_a_peer_s_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapping(rounds: int) -> Callable[[Message], Any]:
        read, came = keys_reader(rounds), []

        def swapped(reply: Message) -> Any:
            keys, history = read(reply)
            came.append(1)
            return (strange(keys) if len(came) == 1 else keys), history

        return swapped

    monkeypatch.setattr(secure_sums, "keys_reader", swapping)
    with pytest.raises(TooFewClients, match="the keys of a party are not signed by it"):
        simulate(tmp_path, node_configs=peers(tmp_path), **FEDNCM)


def test_who_is_no_peer_takes_no_part(tmp_path: Path) -> None:
    nodes = peers(tmp_path, known="abcde")
    with pytest.raises(TooFewClients, match="not among this node's secure-peers, or takes part twice"):
        simulate(tmp_path, node_configs=nodes, **FEDNCM)
    (tmp_path / "a.pem").write_bytes((tmp_path / "b.pem").read_bytes())
    with pytest.raises(TooFewClients, match="not among this node's secure-peers, or takes part twice"):
        simulate(tmp_path, node_configs=nodes[:5], **FEDNCM)
    (tmp_path / "peers").write_text("site a: 00")
    with pytest.raises(TooFewClients, match="this node cannot read its secure-key or secure-peers; the reason is in"):
        simulate(tmp_path, node_configs=nodes, **FEDNCM)


def test_two_lists_of_survivors_are_not_both_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def two_faced(plan: Plan, turn: int, active: list[int], survivors: list[int], *rest: bytes) -> RecordDict:
        asked.append(1)
        return unmask_content(plan, turn, active, survivors if len(asked) % 6 < 3 else survivors[:-1], *rest)

    monkeypatch.setattr(secure_sums, "unmask_content", two_faced)
    with pytest.raises(TooFewClients, match="4 clients must have signed the list of survivors, got"):
        simulate(tmp_path, node_configs=peers(tmp_path), **FEDNCM)


def test_a_peer_that_says_its_data_are_another_peer_s_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    with pytest.raises(TooFewClients, match="says its data are those of another of this node's secure-peers"):
        simulate(tmp_path, node_configs=nodes[:4] + nodes[5:], **FEDNCM)
    # As if e had another key now, and all had put it in place of the old one.
    lines = (tmp_path / "peers").read_text().splitlines()
    (tmp_path / "peers").write_text("\n".join(line for line in lines if not line.startswith("site e")))
    simulate(tmp_path, node_configs=nodes[:4] + nodes[5:], **FEDNCM)


# Classes of few, canaries


def test_a_class_of_two_holders_is_in_no_sum(tmp_path: Path) -> None:
    nodes = sites(tmp_path, "abcd") + nodes_of(tmp_path, "ef", (*CLASSES, "dog"), images=6, secure_min_clients=3)
    folder = simulate(tmp_path, node_configs=nodes, **FEDNCM)
    summed = load_statistics(folder).total.summed()
    kept = load_statistics(folder).class_names
    assert dict(zip(kept, summed.class_counts.tolist(), strict=True)) == {"ant": 36, "bee": 36, "cat": 36, "dog": 0}


def test_a_client_s_numbers_are_in_no_file_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary: the words of one client before they are masked."""
    seen: list[bytes] = []
    sums = SecureLayout.sums

    def noted(self: SecureLayout, *args: Any) -> Any:
        words = sums(self, *args)
        seen.append(words[1].tobytes())
        return words

    monkeypatch.setattr(SecureLayout, "sums", noted)
    folder = simulate(tmp_path, **OPTIONS, method="fedncm", secure_sums="on")
    assert len(seen) == 10
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not any(canary[:64] in content for canary in seen), path
