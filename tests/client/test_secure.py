"""What clients refuse in secure sums, asked by a server that goes beyond the protocol; and what their answers load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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
from fedstats_app.secure.unmasking import MaskedSum
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.statistics.secure_words import Kind, SecureLayout
from fedstats_app.strategies import secure_sums
from fedstats_app.strategies.secure_sums import Agreed, NothingUnmasked, SecureRun
from fedstats_app.testing import LocalGrid, instruction
from fedstats_app.wire import RejectedReply, StatisticsRequest
from fedstats_app.wire.secure import SECURE_KEYS, SECURE_SUMS, keys_reader
from tests.support.commands import printed_by

# Five clients of a node: keys, shares, and a question to unmask, which they refuse because they sent no words.
WITHOUT_TORCH = """
import sys
from flwr.app import Context, RecordDict
from fedstats_app.testing import instruction
for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
    del sys.modules[name]  # which the grid for tests needs

from fedstats_app import client_app
from fedstats_app.secure.plan import Plan, PublicKeys
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.wire.secure import Round, keys_content, shares_content, unmask_content
from fedstats_app.wire.serving import pack_requests

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
    request = StatisticsRequest(CLASSES, spec, "float64", backbone_fingerprint=backbone.fingerprint)
    return SecureRun(grid, request, layout, SAMPLES, 100.0)


Known = dict[str, torch.Tensor]
EVERY_CLASS = torch.ones(CLASSES, dtype=torch.bool)


def presence(run: SecureRun) -> tuple[Agreed, Known]:
    found = run.summed(run.begin(range(NUMBER)), "presence", None, {})
    return found.parties, {"holders": torch.from_numpy(found.words[0].astype("int64"))}


def masked(run: SecureRun, agreed: Agreed, kind: Kind, known: Known) -> MaskedSum:
    return run.add_up(agreed, kind, *run.question(agreed, kind, known), EVERY_CLASS)


def refused(run: SecureRun, agreed: Agreed, kind: Kind, known: Known, reason: str) -> None:
    """Ask for a sum that everybody refuses, with keys destroyed."""
    with pytest.raises(NothingUnmasked, match=reason):
        run.summed(agreed, kind, known.get("holders"), known)
    with pytest.raises(NothingUnmasked, match="no keys for secure sums"):
        run.summed(agreed, kind, known.get("holders"), known)


def test_sums_come_after_presence_and_presence_once(run: SecureRun) -> None:
    agreed = replace(run.begin(range(NUMBER)), num_counted=NUMBER)
    holders = torch.full((CLASSES,), NUMBER)
    refused(run, agreed, "sums", {"holders": holders}, "a sum needs to know first how many clients have each class")
    agreed, _ = presence(run)
    refused(run, agreed, "presence", {}, "it is known already how many clients have each class")


def test_the_statistics_asked_for_stay_the_same(run: SecureRun) -> None:
    agreed, known = presence(run)
    run.request = replace(run.request, spec=replace(run.request.spec, fraction_bits=7))
    refused(run, agreed, "sums", known, "the statistics asked for are others than in the round before")


def test_sums_are_unmasked_once_in_a_run(run: SecureRun) -> None:
    agreed, known = presence(run)
    agreed = run.summed(agreed, "sums", known["holders"], known).parties
    refused(run, agreed, "sums", known, "sums of this run of masks are known, and are not unmasked twice")


@pytest.mark.parametrize("kind", ["sums", "spread"])
def test_a_class_that_may_be_left_with_two_clients_is_not_unmasked(run: SecureRun, kind: Kind) -> None:
    """The server itself would begin anew without the class; one that does not is refused."""
    run.layout = replace(run.layout, spread=kind == "spread")
    agreed, known = presence(run)
    known["holders"] = torch.full((CLASSES,), 3)
    if kind == "spread":
        known["means"] = torch.zeros(CLASSES, run.layout.feature_dim)
        known["weights"] = torch.ones(CLASSES, dtype=torch.float64)
    total = masked(run, agreed, kind, known)
    total.survivors.remove(agreed.active[-1])
    with pytest.raises(NothingUnmasked, match="of a class fewer than 3 clients that have it may be left"):
        run.unmasked(agreed, total, agreed.active[:-1])


def test_both_shares_of_one_client_are_never_given(run: SecureRun) -> None:
    agreed, known = presence(run)
    total = masked(run, agreed, "sums", known)
    run.unmasked(agreed, total, agreed.active)
    with pytest.raises(NothingUnmasked, match="round 1 was unmasked for other survivors"):
        run.unmasked(agreed, total, agreed.active[:-1])


def test_shares_that_were_swapped_are_noticed(run: SecureRun) -> None:
    agreed, known = presence(run)
    total = masked(run, agreed, "sums", known)
    shares = list(agreed.sealed[0])
    shares[1] = shares[1][SEALED_BYTES:] + shares[1][:SEALED_BYTES]
    agreed = replace(agreed, sealed={**agreed.sealed, 0: shares})
    with pytest.raises(NothingUnmasked, match="a sealed share does not come from its sender"):
        run.unmasked(agreed, total, agreed.active)


def test_a_client_with_another_s_keys_or_none_that_agree_is_left_out(run: SecureRun) -> None:
    stolen = public_key(bytes(range(32)))
    keys = {one: PublicKeys(bytes([one] * 16), bytes([one] * 32), (bytes([one, 9] * 16),)) for one in range(1, 4)}
    keys[4] = replace(keys[1], channel=stolen)
    assert list(run.different(keys)) == [1, 2, 3]
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
    agreed, known = presence(run)
    assert 0 < run.summed(agreed, "sums", known["holders"], known).words[0].max() < SAMPLES
    other = replace(run.request, class_names=names[::-1]).to_content()["request"]

    def two_faced(content: RecordDict, kind: str, clients: set[int]) -> list[Message]:
        of_one = RecordDict({**content, "request": other} if kind == SECURE_SUMS else dict(content))
        return [*to_all(of_one, kind, [0]), *to_all(content, kind, clients - {0})]

    agreed = run.begin(range(NUMBER))
    monkeypatch.setattr(secure_sums, "to_all", two_faced)
    counted = run.summed(agreed, "presence", None, {})
    assert counted.words[0].max() > NUMBER
    assert run.summed(counted.parties, "sums", known["holders"], known).words[0].max() > SAMPLES
