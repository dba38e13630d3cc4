"""What clients refuse in secure sums, asked by a server that goes beyond the protocol; and what their answers load."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
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
from fedstats_app.secure.party import SEALED_BYTES, query_of
from fedstats_app.secure.plan import Entry, Plan
from fedstats_app.secure.unmasking import MaskedSum
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.statistics.secure_words import SecureLayout
from fedstats_app.strategies import secure_sums
from fedstats_app.strategies.secure_sums import Agreed, MaskedRun, NothingUnmasked, Summed
from fedstats_app.testing import LocalGrid, instruction
from fedstats_app.wire import RejectedReply, StatisticsRequest
from fedstats_app.wire import secure as wire
from fedstats_app.wire.secure import (
    SECURE_KEYS,
    SECURE_SUMS,
    SumRequest,
    keys_reader,
    plan_content,
    question_text,
    read_question,
    sums_content,
)
from tests.support.commands import printed_by

# Five clients of a node: keys, shares, and a question to unmask, which they refuse because they sent no words.
WITHOUT_TORCH = """
import logging, sys
from flwr.app import Context, RecordDict
from fedstats_app import client_app
from fedstats_app.secure.plan import Entry, Plan
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.testing import instruction
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.wire import StatisticsRequest
from fedstats_app.wire.secure import *
from fedstats_app.wire.serving import pack_requests

logging.basicConfig(stream=sys.stdout, format="%(message)s", force=True)
config = AppConfig.of(partitioner="iid", num_clients=5).to_run_config()
context = Context(1, 1, {"partition-id": 0, "num-partitions": 1}, RecordDict(), config)
def answer(kind, content):
    return client_app.app(instruction(pack_requests(content, range(5)), "query.secure_" + kind), context).content
request = StatisticsRequest(10, StatisticsSpec(fraction_bits=8), "float64")
found = answer("keys", keys_content(Round(bytes(32), 1, 10), question_text(request, SumRequest(9999, 1.0))))
plan = Plan(bytes(32), 1, 10, tuple(Entry.from_bytes(found[f"{own}.entry"]["entry"], 1, 10) for own in range(5)))
for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
    del sys.modules[name]  # which the list of classes needs
found = answer("shares", shares_content(plan, []))
print(len(found["0.sealed"]["sealed"]))
found = answer("unmask", unmask_content(plan, 0, range(5), range(5), bytes(82 * 4)))
print(found["failed"]["0"], "torch" in sys.modules)
"""
NUMBER, CLASSES, SAMPLES = 6, 10, 8000
SENTENCE = "this client gives nothing to this sum; the reason is in its log, and `fedstats node allow` shows what waits"


@dataclass
class Asked:
    """A run of masks among six clients, of which each has every class, and a server that asks what it likes."""

    run: MaskedRun
    layout: SecureLayout

    def begin(self) -> Agreed:
        return self.run.begin(range(NUMBER))

    def summed(self, agreed: Agreed) -> Summed:
        return self.run.summed(agreed, "sums", lambda classes: self.layout.shapes(int(classes.sum())))

    def masked(self, agreed: Agreed) -> MaskedSum:
        """The sum before it is unmasked."""
        content, query = (
            sums_content(agreed.plan, agreed.turn, agreed.active),
            query_of(self.run.question, "sums", agreed.active),
        )
        return self.run.added(content, SECURE_SUMS, {own: own for own in agreed.active}, self.layout.shapes(10), query)


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    options = {"backbone": "random:tiny", "input-size": 16, "num-clients": NUMBER, "partitioner": "iid"}
    config = {**AppConfig().to_run_config(), **options, "cache-dir": str(tmp_path.parent / "cache")}
    backbone = loaded_backbone(AppConfig.from_run_config(config).backbone_for(own_data=False), tmp_path)
    inner = LocalGrid(client_app.app, [{"partition-id": 0, "num-partitions": 1}], config)
    grid = ClientGrid(inner, dict.fromkeys(range(NUMBER), inner.get_node_ids()[0]))
    layout = SecureLayout(backbone.feature_dim, SAMPLES, 100.0)
    names = load_dataset("builtin", "train").class_names
    spec = StatisticsSpec(fraction_bits=layout.bits)
    request = StatisticsRequest(CLASSES, spec, "float64", backbone_fingerprint=backbone.fingerprint, class_names=names)
    question = question_text(request, SumRequest(SAMPLES, 100.0))
    return Asked(MaskedRun(grid, question=question, class_names=names), layout)


def test_a_sum_is_unmasked_once_in_a_run(asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
    after = asked.summed(asked.begin()).agreed
    for reason in ("sums of this run of masks are known, and are not unmasked twice", "no keys for secure sums"):
        with pytest.raises(NothingUnmasked, match=SENTENCE):
            asked.summed(after)
        assert reason in caplog.text


def test_both_shares_of_one_client_are_never_given(asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
    agreed = asked.begin()
    total = asked.masked(agreed)
    asked.run.unmasked(agreed, total, agreed.active)
    with pytest.raises(NothingUnmasked, match=SENTENCE):
        asked.run.unmasked(agreed, total, agreed.active[:-1])
    assert "round 0 was unmasked for other survivors" in caplog.text


def test_shares_that_were_swapped_are_noticed(asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
    agreed = asked.begin()
    total, shares = asked.masked(agreed), list(agreed.sealed[0])
    shares[0] = shares[0][SEALED_BYTES:] + shares[0][:SEALED_BYTES]
    with pytest.raises(NothingUnmasked, match=SENTENCE):
        asked.run.unmasked(replace(agreed, sealed={**agreed.sealed, 0: shares}), total, agreed.active)
    assert "a sealed share does not come from its sender" in caplog.text


@pytest.mark.parametrize("how", ["a class list", "what it wants", "a party less"])
def test_a_changed_plan(
    asked: Asked, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After shares were given everybody sees it; before, the party whose entry it is."""

    def changed(plan: Plan) -> Plan:
        *others, last = plan.parties
        entry = {"a class list": {"classes": bytes(2)}, "what it wants": {"least": 4}}.get(how)
        return replace(plan, parties=(*others, *([replace(last, **entry)] if entry else [])))

    agreed = asked.begin()
    plan = changed(agreed.plan)
    with pytest.raises(NothingUnmasked, match=SENTENCE):
        asked.summed(replace(agreed, plan=plan, active=agreed.active[: len(plan.parties)]))
    assert "parties of this run have changed" in caplog.text

    monkeypatch.setattr(wire, "plan_content", lambda plan, turn=0: plan_content(changed(plan), turn))
    with suppress(NothingUnmasked):
        assert 5 not in asked.begin().active
    assert asked.run.failures[5] == f"RejectedRequest: {SENTENCE}" and "keys of this run are not among" in caplog.text


@pytest.mark.parametrize(("samples", "norm"), [(1, 1.0), (100, 1e-3), (SAMPLES, 1e6)])
def test_no_limit_of_the_server_s_tells_how_many_samples_a_client_has(asked: Asked, samples: int, norm: float) -> None:
    """Each answers with words of the same lengths, whatever it has; the sum, if it is too large, is the run's end."""
    layout = replace(asked.layout, samples=samples, norm=norm)
    request, _ = read_question(asked.run.question)
    spec = StatisticsSpec(fraction_bits=layout.bits)
    asked.run.question = question_text(replace(request, spec=spec), SumRequest(samples, norm))
    asked.layout = layout
    found = asked.summed(asked.begin())
    assert not asked.run.failures and len(found.over) == NUMBER
    if samples < SAMPLES:
        with pytest.raises(ValueError, match="it has room for"):
            layout.read(found.words, torch.from_numpy(found.classes))


def test_a_client_with_another_s_keys_or_none_that_agree_is_left_out(asked: Asked) -> None:
    stolen = public_key(bytes(range(32)))
    keys = {one: Entry(bytes([one] * 16), bytes([one] * 32), (bytes([one, 9] * 16),)) for one in range(1, 4)}
    keys[4] = replace(keys[1], channel=stolen)
    assert list(asked.run.different(keys)) == [1, 2, 3]
    assert asked.run.failures == {4: "its keys are those of another client"}
    # All secrets with this key are 0: the others would refuse to share with it, and be lost.
    content = RecordDict({"entry": ConfigRecord({"entry": replace(keys[1], channel=bytes(32)).to_bytes()})})
    content["sets"] = ConfigRecord({"sets": []})
    with pytest.raises(RejectedReply, match="keys: must agree with others"):
        keys_reader(1, 0)(Message(content, reply_to=instruction(RecordDict(), SECURE_KEYS)))


def test_shares_are_given_and_opened_without_torch() -> None:
    """Each message is a new process on a real SuperNode."""
    sealed, *log, refusal = printed_by(WITHOUT_TORCH).splitlines()
    assert int(sealed) == 4 * SEALED_BYTES and any("round 0 was masked among other parties" in line for line in log)
    assert refusal == f"RejectedRequest: {SENTENCE} False"


def test_of_a_client_asked_something_else_nothing_is_learned(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its classes in another order, the sum less that of before would be the client's own numbers alone."""
    assert 0 < asked.summed(asked.begin()).words[0].max() < SAMPLES
    request, sum_request = read_question(asked.run.question)
    other = question_text(replace(request, class_names=request.class_names[::-1]), sum_request)

    def two_faced(content: RecordDict, kind: str, clients: Iterable[int]) -> list[Message]:
        of_one = RecordDict(dict(content))
        if kind == SECURE_KEYS:
            of_one["question"] = ConfigRecord({"question": other})
        return [*to_all(of_one, kind, [0]), *to_all(content, kind, set(clients) - {0})]

    monkeypatch.setattr(secure_sums, "to_all", two_faced)
    assert asked.summed(asked.begin()).words[0].max() > 2**60
