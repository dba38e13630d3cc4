"""Whatever happens becomes a reply that can be sent, and of several clients in one message each fails alone."""

import sys
from collections.abc import Callable

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.testing import instruction
from fedstats_app.wire import guard, per_client
from fedstats_app.wire.reading import MAX_REASON, clean_reason
from fedstats_app.wire.serving import pack_requests, unpack_reply

NOWHERE = Context(1, 1, {}, RecordDict(), {})
REQUEST = RecordDict({"request": ConfigRecord({"what": "ids"})})

app = ClientApp(mods=[guard])


@app.query("statistics")
@per_client
def statistics(msg: Message, context: Context, client_id: int | None) -> Message:
    """Fail in the way that the client's number says."""
    assert msg.content["request"]["what"] == "ids"
    match client_id:
        case 1:
            raise ValueError("no data\nfor client 1")
        case 2:
            sys.exit("killed")
        case 3:
            return Message(Error(code=7, reason="not today"), reply_to=msg)
    number = MetricRecord({"id": -1 if client_id is None else client_id})
    return Message(RecordDict({"metrics": number, "arrays": ArrayRecord()}), reply_to=msg)


def client_instruction(client: int) -> Message:
    return instruction(REQUEST, node=client)


def ask(clients: list[int]) -> Message:
    return app(instruction(pack_requests(REQUEST, clients), node=99), NOWHERE)


def test_among_many_each_failure_is_named_and_its_own() -> None:
    clients = list(range(13))
    reply = ask(clients)

    answers = {client: unpack_reply(reply, client, client_instruction(client)) for client in clients}

    reasons = {client: answer.error.reason for client, answer in answers.items() if answer.has_error()}
    assert reasons == {1: "ValueError: no data for client 1", 2: "SystemExit: killed", 3: "not today"}
    for client in {0, *range(4, 13)}:
        assert set(answers[client].content) == {"metrics", "arrays"}
        assert answers[client].content["metrics"]["id"] == client and answers[client].metadata.src_node_id == client
    assert reply.deflate()


def test_without_clients_the_node_is_the_client() -> None:
    reply = app(instruction(REQUEST, node=99), NOWHERE)

    assert reply.content["metrics"]["id"] == -1
    answer = unpack_reply(reply, None, client_instruction(99))
    assert answer.content is reply.content and answer.metadata.src_node_id == 99


@pytest.mark.parametrize(
    "record", [ConfigRecord(), *(ConfigRecord({"ids": ids}) for ids in ([0.5], "01", [1, 1], [True])), ArrayRecord()]
)
def test_a_hostile_list_of_clients_is_refused(record: ConfigRecord | ArrayRecord) -> None:
    reply = app(instruction(RecordDict({**REQUEST, "clients": record})), NOWHERE)

    assert reply.has_error() and "clients: must be" in reply.error.reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "names no failures"),
        (RecordDict({"failed": ArrayRecord()}), "names no failures"),
        (RecordDict({"failed": ConfigRecord(), "11.metrics": MetricRecord()}), "holds nothing of it"),
        (RecordDict({"failed": ConfigRecord(), "1": MetricRecord()}), "holds nothing of it"),
        (RecordDict({"failed": ConfigRecord({"1": 5})}), "5"),
        (RecordDict({"failed": ConfigRecord({"1": "x\n" * 10_000})}), "x x"),
    ],
)
def test_a_hostile_reply_is_that_clients_error(content: RecordDict, reason: str) -> None:
    host = Message(content, reply_to=instruction(REQUEST, node=99))

    answer = unpack_reply(host, 1, client_instruction(1))

    assert reason in answer.error.reason and len(answer.error.reason) <= 500
    assert answer.metadata.src_node_id == 1


def test_an_error_of_the_node_is_every_clients_error() -> None:
    host = Message(Error(code=5, reason="Node Unavailable"), reply_to=instruction(REQUEST, node=99))

    for client in (None, 0, 7):
        answer = unpack_reply(host, client, client_instruction(7))
        assert (answer.error.code, answer.error.reason, answer.metadata.src_node_id) == (5, "Node Unavailable", 7)


def test_a_reply_cannot_speak_for_another_node() -> None:
    host = Message(REQUEST, reply_to=instruction(REQUEST, node=99))
    host.metadata.__dict__["_src_node_id"] = 55

    assert unpack_reply(host, None, client_instruction(99)).metadata.src_node_id == 99


def through_guard(function: Callable[[Message], object]) -> Message:
    app = ClientApp(mods=[guard])
    app.query("statistics")(lambda msg, context: function(msg))  # type: ignore[arg-type,return-value]
    return app(instruction(RecordDict(), node=7), NOWHERE)


def raises(error: BaseException) -> Callable[[Message], object]:
    def function(msg: Message) -> object:
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda msg: None, "TypeError: the ClientApp must return a Message, got NoneType"),
        (lambda msg: {"loss": 1.0}, "TypeError: the ClientApp must return a Message, got dict"),
        (raises(ValueError("no data")), "ValueError: no data"),
        (raises(KeyError("labels")), "KeyError: 'labels'"),
        (raises(MemoryError()), "MemoryError"),
        (lambda msg: sys.exit("out of memory"), "SystemExit: out of memory"),
        (lambda msg: Message(RecordDict({"metrics": MetricRecord({"n": 2**64})}), reply_to=msg), "ValueError"),
        (
            lambda msg: Message(RecordDict({"about": ConfigRecord({"file": "caf\udce9.png"})}), reply_to=msg),
            "UnicodeEncodeError",
        ),
        (raises(OSError("cannot read caf\udce9.png\nsecond line\x1b[31m")), "cannot read caf?.png second line"),
        (raises(ValueError("a" * 10**6 + " the end")), " the end"),
    ],
    ids=["None", "dict", "raise", "key", "memory", "exit", "2**64", "surrogate", "unprintable", "megabyte"],
)
def test_it_becomes_an_error_reply_that_can_be_sent(function: Callable[[Message], object], reason: str) -> None:
    reply = through_guard(function)

    assert reply.has_error() and reply.error.code == 100
    assert reason in reply.error.reason or reply.error.reason.endswith(reason)
    assert len(reply.error.reason) <= 500 and reply.error.reason.isprintable()
    assert reply.metadata.src_node_id == 7 and reply.metadata.reply_to_message_id == "instruction-7"
    assert reply.deflate(), "what goes over a real wire"


def test_an_interrupt_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        through_guard(raises(KeyboardInterrupt()))


@given(st.text(max_size=2000))
def test_a_reason_is_one_short_printable_line_that_utf8_takes(text: str) -> None:
    reason = clean_reason(text)

    assert len(reason) <= MAX_REASON and reason.isprintable()
    assert reason.encode("utf-8").decode("utf-8") == reason == clean_reason(reason)


@pytest.mark.parametrize("length", [MAX_REASON - 1, MAX_REASON, MAX_REASON + 1, 10**6])
def test_of_a_long_reason_both_ends_are_kept(length: int) -> None:
    text = "begin" + "." * (length - 8) + "end"

    reason = clean_reason(text)

    assert len(reason) == min(length, MAX_REASON) and reason.startswith("begin.") and reason.endswith(".end")
    assert reason == text or " ... " in reason
