"""What clients refuse in secure sums, asked by a server that goes beyond the protocol; and what their answers load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fedstats_app import client_app
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.data import load_dataset
from fedstats_app.grid.asking import to_all
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.secure.masks import public_key
from fedstats_app.secure.party import SEALED_BYTES
from fedstats_app.secure.plan import PublicKeys
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.statistics.secure_words import Kind, SecureLayout
from fedstats_app.strategies import secure_sums
from fedstats_app.strategies.secure_sums import NothingUnmasked, SecureRun
from fedstats_app.testing import LocalGrid, instruction
from fedstats_app.wire import RejectedReply, StatisticsRequest
from fedstats_app.wire.secure import SECURE_KEYS, SECURE_SUMS, keys_reader
from tests.support.commands import printed_by

# Five clients of a node: keys, shares, and a question to unmask, which they refuse because they sent no words.
WITHOUT_TORCH = """
import sys
from flwr.app import Context, RecordDict
from fedstats_app import client_app
from fedstats_app.secure.plan import Plan, PublicKeys
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.wire.secure import Round, keys_content, shares_content, unmask_content
from fedstats_app.wire.serving import pack_requests
from fedstats_app.testing import instruction

context = Context(1, 1, {"partition-id": 0, "num-partitions": 1}, RecordDict(), AppConfig().to_run_config())
def answer(kind, content):
    return client_app.app(instruction(pack_requests(content, range(5)), "query.secure_" + kind), context).content
found = answer("keys", keys_content(Round(bytes(32), 1)))
keys = tuple(PublicKeys.from_bytes(found[f"{client}.keys"]["keys"], 1) for client in range(5))
plan = Plan(bytes(32), 1, keys)
found = answer("shares", shares_content(plan, []))
print(len(found["0.sealed"]["sealed"]))
found = answer("unmask", unmask_content(plan, 0, range(5), range(5), bytes(82 * 4)))
print(found["failed"]["0"], "torch" in sys.modules)
"""
NUMBER, CLASSES, SAMPLES = 6, 10, 8000


@pytest.fixture
def run(tmp_path: Path) -> SecureRun:
    """A run of masks among six clients, not begun."""
    options = {"backbone": "random:tiny", "input-size": 16, "num-clients": NUMBER, "partitioner": "iid"}
    config = {**AppConfig().to_run_config(), **options, "cache-dir": str(tmp_path.parent / "cache")}
    backbone = loaded_backbone(AppConfig.from_run_config(config).backbone_for(own_data=False), tmp_path)
    inner = LocalGrid(client_app.app, [{"partition-id": 0, "num-partitions": 1}], config)
    grid = ClientGrid(inner, dict.fromkeys(range(NUMBER), inner.get_node_ids()[0]))
    layout = SecureLayout.of(CLASSES, backbone.feature_dim, "none", NUMBER, SAMPLES, 100.0)
    spec = StatisticsSpec(fraction_bits=layout.bits)
    request = StatisticsRequest(CLASSES, (spec,), "float64", backbone_fingerprint=backbone.fingerprint)
    return SecureRun(grid, request, layout, SAMPLES, 100.0)


def presence(run: SecureRun) -> dict[str, torch.Tensor]:
    run.begin(range(NUMBER))
    words, _ = run.summed("presence", None, {})
    return {"holders": torch.from_numpy(words[0].astype("int64"))}


def refused(run: SecureRun, kind: Any, known: dict[str, torch.Tensor], reason: str) -> None:
    """Ask for a sum that everybody refuses, with keys destroyed."""
    with pytest.raises(NothingUnmasked, match=reason):
        run.summed(kind, known.get("holders"), known)
    with pytest.raises(NothingUnmasked, match="no keys for secure sums"):
        run.summed(kind, known.get("holders"), known)


def test_sums_come_after_presence_and_presence_once(run: SecureRun) -> None:
    run.begin(range(NUMBER))
    run.present = NUMBER
    holders = torch.full((CLASSES,), NUMBER)
    refused(run, "sums", {"holders": holders}, "a sum needs to know first how many clients have each class")
    presence(run)
    refused(run, "presence", {}, "it is known already how many clients have each class")


def test_the_statistics_asked_for_stay_the_same(run: SecureRun) -> None:
    known = presence(run)
    run.request = replace(run.request, specs=(replace(run.request.specs[0], fraction_bits=7),))
    refused(run, "sums", known, "the statistics asked for are others than in the round before")


def test_sums_are_unmasked_once_in_a_run(run: SecureRun) -> None:
    known = presence(run)
    run.summed("sums", known["holders"], known)
    refused(run, "sums", known, "sums of this run of masks are known, and are not unmasked twice")


@pytest.mark.parametrize("kind", ["sums", "spread"])
def test_a_class_that_may_be_left_with_two_clients_is_not_unmasked(run: SecureRun, kind: Kind) -> None:
    """The server itself would begin anew without the class; one that does not is refused."""
    run.layout = replace(run.layout, spread=kind == "spread")
    known = presence(run)
    known["holders"] = torch.full((CLASSES,), 3)
    if kind == "spread":
        known["means"] = torch.zeros(CLASSES, run.layout.feature_dim)
        known["weights"] = torch.ones(CLASSES, dtype=torch.float64)
    active = run.active
    total = run._masked(kind, 1, 0, torch.ones(CLASSES, dtype=torch.bool), known)
    left = active[:-1]
    total.survivors.remove(active[-1])
    with pytest.raises(NothingUnmasked, match="of a class fewer than 3 clients that have it may be left"):
        run._unmasked(total, 1, left)


def test_both_shares_of_one_client_are_never_given(run: SecureRun) -> None:
    known = presence(run)
    total = run._masked("sums", 1, 0, torch.ones(CLASSES, dtype=torch.bool), known)
    run._unmasked(total, 1, run.active)
    with pytest.raises(NothingUnmasked, match="round 1 was unmasked for other survivors"):
        run._unmasked(total, 1, run.active[:-1])


def test_shares_that_were_swapped_are_noticed(run: SecureRun) -> None:
    known = presence(run)
    total = run._masked("sums", 1, 0, torch.ones(CLASSES, dtype=torch.bool), known)
    run.sealed[0][1] = run.sealed[0][1][SEALED_BYTES:] + run.sealed[0][1][:SEALED_BYTES]
    with pytest.raises(NothingUnmasked, match="a sealed share does not come from its sender"):
        run._unmasked(total, 1, run.active)


def test_a_client_with_another_s_keys_or_none_that_agree_is_left_out(run: SecureRun) -> None:
    stolen = public_key(bytes(range(32)))
    keys = {one: PublicKeys(bytes([one] * 16), bytes([one] * 32), (bytes([one, 9] * 16),)) for one in range(1, 4)}
    keys[4] = replace(keys[1], channel=stolen)
    assert list(run._different(keys)) == [1, 2, 3]
    assert run.failures == {4: "its keys are those of another client"}
    # All secrets with this key are 0: the others would refuse to share with it, and be lost.
    content = {"keys": ConfigRecord({"keys": replace(keys[1], channel=bytes(32)).to_bytes()})}
    reply = RecordDict({**content, "history": ConfigRecord({"history": []})})
    with pytest.raises(RejectedReply, match="keys: must agree with others"):
        keys_reader(1)(Message(reply, reply_to=instruction(RecordDict(), SECURE_KEYS)))


def test_all_but_the_sums_load_no_torch() -> None:
    """Each message is a new process on a real SuperNode."""
    sealed, refusal = printed_by(WITHOUT_TORCH).splitlines()
    assert int(sealed) == 4 * SEALED_BYTES
    assert refusal.endswith("refused, and keys destroyed: round 0 was masked among other parties False")


def test_of_a_client_that_was_asked_something_else_nothing_is_learned(
    run: SecureRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its classes in another order, the sum less that of before would be the client's own numbers alone."""
    names = load_dataset("builtin", "train").class_names
    run.request = replace(run.request, class_names=names)
    known = presence(run)
    assert 0 < run.summed("sums", known["holders"], known)[0][0].max() < SAMPLES
    other = replace(run.request, class_names=names[::-1]).to_content()["request"]

    def two_faced(content: RecordDict, kind: str, clients: set[int]) -> list[Message]:
        of_one = RecordDict({**content, "request": other} if kind == SECURE_SUMS else dict(content))
        return [*to_all(of_one, kind, [0]), *to_all(content, kind, clients - {0})]

    run.begin(range(NUMBER))
    monkeypatch.setattr(secure_sums, "to_all", two_faced)
    assert run.summed("presence", None, {})[0][0].max() > NUMBER
    assert run.summed("sums", known["holders"], known)[0][0].max() > SAMPLES
