"""Whatever happens in a ClientApp function becomes a reply that can be sent."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedstats_app.wire import guard
from tests.support.local_grid import instruction

NOWHERE = Context(1, 1, {}, RecordDict(), {})


def through_guard(function: Callable[[Message], object]) -> Message:
    app = ClientApp(mods=[guard])

    @app.query("statistics")
    def statistics(msg: Message, context: Context) -> Message:
        return function(msg)  # type: ignore[return-value]

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
        (
            lambda msg: Message(RecordDict({"metrics": MetricRecord({"n": 2**64})}), reply_to=msg),
            "ValueError",
        ),
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


def test_a_good_reply_passes_as_it_is() -> None:
    content = RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord({"n": 2**63 - 1, "loss": [0.5]})})

    reply = through_guard(lambda msg: Message(content, reply_to=msg))

    assert reply.content is content


def test_an_interrupt_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        through_guard(raises(KeyboardInterrupt()))
