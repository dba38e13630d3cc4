"""Bytes of a client's round of FedMeZO of one direction: of the values, of the content, and of Flower's whole message.

    python -m research.benchmarks.mezo_bytes

`packed` is the content if all values were one field of bytes: what the names and types of the fields cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto, recorddict_to_proto

from fedstats_app.fedmezo.log import Update
from fedstats_app.grid.in_process import task
from fedstats_app.wire.mezo import MEZO, RECORD, MezoReply, MezoRequest, mezo_reply
from research.benchmarks.lines import parser_of, printed

# As large as Flower's ids and seeds are.
_RUN, _NODE, _SEED = 2**62, 2**63 + 1, 2**31 - 1


@dataclass(frozen=True)
class Size:
    """Bytes of the request ("down") or the reply ("up")."""

    direction: str
    values: int
    content: int
    packed: int
    message: int


def _size(direction: str, values: int, message: Message) -> Size:
    message.metadata.__dict__["_message_id"] = "0" * 64  # which Flower gives it when it is sent
    content, packed = (
        len(recorddict_to_proto(records).SerializeToString())
        for records in (message.content, RecordDict({RECORD: ConfigRecord({"a": bytes(values)})}))
    )
    return Size(direction, values, content, packed, len(message_to_proto(message).SerializeToString()))


def sizes() -> list[Size]:
    """Measure the request of a later round, and the reply to it."""
    later = MezoRequest(0, 100, _SEED, updates=(Update(_SEED, (0.1,)),))
    with task(_RUN):
        request = Message(later.to_content(), _NODE, MEZO)
        down = _size("down", later.round_bytes, request)
        measured = MezoReply((0.1,), 1000, bytes(range(16)))
        return [down, _size("up", measured.num_bytes, mezo_reply(request, measured))]


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line: a line of JSON for each direction."""
    parser_of(__doc__).parse_args(arguments)
    printed(sizes())


if __name__ == "__main__":
    main()
