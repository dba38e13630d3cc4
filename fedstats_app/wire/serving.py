"""Handling of any message by a SuperNode: the clients it hosts, several in one message, a reply in any case.

``query.clients`` asks which clients a SuperNode hosts.

A request for several clients is their common content plus a ConfigRecord ``clients`` with ``ids``; the reply has every
client's records under ``<id>.<name>`` and a ConfigRecord ``failed`` from id to reason. Without ``clients`` the message
is for the node itself, which then is one client. No reply at all would hang a simulation and wedge a SuperNode.
"""

from __future__ import annotations

import functools
import itertools
import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from fedstats_app.training.limits import MAX_CLIENT_NAME
from fedstats_app.wire.reading import (
    LARGEST_WHOLE,
    Malformed,
    RejectedRequest,
    check_keys,
    clean_reason,
    counted,
    from_values,
    list_of,
    optional,
    reads_replies,
    record_of,
    to_values,
    whole,
)

QUERY_CLIENTS = "query.clients"
MAX_CLASS_NAMES = 100_000
MAX_CLASS_NAME_LENGTH = 200
GUARD_ERROR_CODE = 100

WITHHELD = "the reason is in the log of this node"

# What a handler for one client looks like: client id is None where the node is the client.
ClientHandler = Callable[[Message, Context, int | None], Message]

logger = logging.getLogger("fedstats_app")


def guard(msg: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Mod for a whole ClientApp: exceptions, exits, None and unserialisable replies become error replies."""
    try:
        return checked_reply(call_next(msg, context))
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the one place where everything must be caught
        logger.error("%s failed on this node: %s", msg.metadata.message_type, _for_log(error))
        return Message(Error(code=GUARD_ERROR_CODE, reason=reason_to_send(error, context)), reply_to=msg)


def checked_reply(reply: object) -> Message:
    """Return what a handler returned if it is a message that can be sent.

    Else it raises TypeError, or whatever Flower does for a record that cannot be serialised: here it can still be
    answered.
    """
    if not isinstance(reply, Message):
        raise TypeError(f"the ClientApp must return a Message, got {type(reply).__name__}")
    if reply.has_content():
        for record in reply.content.values():
            # Arrays can always be serialised, and are what takes time.
            if not isinstance(record, ArrayRecord):
                record.deflate()
    return reply


def reason_of(error: BaseException) -> str:
    """Return type and text of an error, fit to be sent."""
    return clean_reason(f"{type(error).__name__}: {error}")


def _for_log(error: BaseException) -> str:
    """Return the traceback of an error, or its text alone if it is a refusal and not a mistake of ours."""
    return reason_of(error) if getattr(error, "for_server", False) else f"\n{traceback.format_exc()}"


def reason_to_send(error: BaseException, context: Context) -> str:
    """Return what a server is told of an error.

    Texts of most errors can name files, columns or people. So from a node that is not the server's only those leave
    whose class says that they are written for the server (``for_server``); of others the type, and where the rest is.
    """
    theirs = context.node_config.keys() & {"data-path", "deployed"}
    if not theirs or getattr(error, "for_server", False):
        return reason_of(error)
    return f"{type(error).__name__}: {WITHHELD}"


def pack_requests(content: RecordDict, client_ids: Sequence[int]) -> RecordDict:
    """Return the content of one message for several clients."""
    return RecordDict({**content, "clients": ConfigRecord({"ids": list(client_ids)})})


def unpack_reply(reply: Message, client_id: int | None, instruction: Message) -> Message:
    """Take one client's reply out of a SuperNode's, untrusted, as an answer to the client's own instruction.

    Without an id the node is the client, and all is its.
    """
    if reply.has_error():
        text = None if reply.error.reason is None else clean_reason(reply.error.reason)
        return Message(Error(code=reply.error.code, reason=text), reply_to=instruction)
    if client_id is None:
        return Message(reply.content, reply_to=instruction)
    failed = reply.content.get("failed")
    reason = failed.get(str(client_id)) if isinstance(failed, ConfigRecord) else "the reply names no failures"
    if reason is not None:
        return Message(Error(code=GUARD_ERROR_CODE, reason=clean_reason(reason)), reply_to=instruction)
    prefix = f"{client_id}."
    content = RecordDict(
        {name.removeprefix(prefix): record for name, record in reply.content.items() if name.startswith(prefix)}
    )
    if not content:
        return Message(Error(code=GUARD_ERROR_CODE, reason="the reply holds nothing of it"), reply_to=instruction)
    return Message(content, reply_to=instruction)


def clients_in(msg: Message) -> int:
    """Return how many clients a message is for."""
    return len(_client_ids(msg)) if "clients" in msg.content else 1


def _client_ids(msg: Message) -> list[int]:
    record = msg.content["clients"]
    ids = record.get("ids") if isinstance(record, ConfigRecord) else None
    if not isinstance(ids, list) or any(type(client_id) is not int for client_id in ids) or len(set(ids)) < len(ids):
        raise RejectedRequest(f"clients: must be a ConfigRecord with different integer ids, got {ids!r:.80}")
    return [client_id for client_id in ids if isinstance(client_id, int)]


def per_client(handler: ClientHandler) -> Callable[[Message, Context], Message]:
    """Turn a handler of one client into a ClientApp function for all that the SuperNode hosts.

    The loop over clients is here only. What one client's handler raises, or returns that cannot be sent, is that
    client's failure alone.
    """

    @functools.wraps(handler)
    def for_all(msg: Message, context: Context) -> Message:
        if "clients" not in msg.content:
            return handler(msg, context, None)
        content, failed = RecordDict(), ConfigRecord()
        for client_id in _client_ids(msg):
            try:
                answer = checked_reply(handler(msg, context, client_id))
            except (Exception, SystemExit) as error:  # noqa: BLE001  # the other clients' answers must not be lost
                # One traceback a message: what is wrong with one client is often wrong with all.
                logger.error("client %s failed: %s", client_id, reason_of(error) if failed else _for_log(error))
                failed[str(client_id)] = reason_to_send(error, context)
                continue
            if answer.has_error():
                failed[str(client_id)] = clean_reason(answer.error.reason)
                continue
            for name, record in answer.content.items():
                content[f"{client_id}.{name}"] = record
        content["failed"] = failed
        return Message(content, reply_to=msg)

    return for_all


# Which clients a SuperNode hosts


@dataclass(frozen=True)
class NodeInfo:
    """Description that a SuperNode gives of itself.

    Attributes
    ----------
    partition_id, num_partitions : int or None
        In a simulation (or where node-config says so) the node hosts the clients ``partition_id``, ``partition_id +
        num_partitions``, ... of the run's data set. None: the node has data of its own and is one client.
    class_names : tuple of str
        Of a node with data of its own, in its own order; those that its policy keeps to itself are not among them.
    class_ids : tuple of int or None
        The numbers that its data itself has for them, ascending; None where its classes have names only.
    trains, evaluates : bool
        False: the node's clients take no part in training; and none in evaluation, since the node serves a release.
    any_app : bool
        True: the node's owner lets any app's code run there.
    client_name : str
        That the owner of a node with data of its own gave it; "" for none.
    process, threads : int
        Of a node that hosts partitions: what tells its process from others, and how many threads that computes with. 0
        where it does not say.
    targets : {"", "labels", "numbers"}
        What samples of a node with data of its own have in place of one class.
    """

    partition_id: int | None = counted(LARGEST_WHOLE, default=None, optional=True)
    num_partitions: int | None = counted(LARGEST_WHOLE, low=1, default=None, optional=True)
    class_names: tuple[str, ...] = field(default=(), metadata={"apart": True})
    class_ids: tuple[int, ...] | None = field(default=None, metadata={"apart": True})
    trains: bool = optional(True)
    evaluates: bool = optional(True)
    any_app: bool = optional(False)
    client_name: str = optional("")
    process: int = counted(LARGEST_WHOLE, optional=True)
    threads: int = counted(LARGEST_WHOLE, optional=True)
    targets: str = optional("")


def node_info_reply(msg: Message, info: NodeInfo) -> Message:
    """Answer a ``query.clients`` message."""
    return Message(RecordDict({"node": node_info_record(info)}), reply_to=msg)


def node_info_record(info: NodeInfo) -> ConfigRecord:
    """Write the record ``node``."""
    record = ConfigRecord(to_values(info))
    if info.partition_id is None:
        record["class-names"] = list(info.class_names)
        if info.class_ids is not None:
            record["class-ids"] = list(info.class_ids)
    return record


@reads_replies
def read_node_info(reply: Message) -> NodeInfo:
    """Read what a SuperNode says of itself."""
    check_keys("reply", reply.content, {"node"})
    return node_info_of(record_of(reply.content, "node", ConfigRecord))


def node_info_of(record: ConfigRecord) -> NodeInfo:
    """Read the record ``node``, or raise :class:`Malformed`."""
    if "class-names" in record and "partition-id" not in record:
        check_keys(
            "node", record, {"class-names"}, {"trains", "evaluates", "any-app", "class-ids", "client-name", "targets"}
        )
        names = list_of(record, "class-names", str, MAX_CLASS_NAMES)
        for name in names:
            if not (1 <= len(name) <= MAX_CLASS_NAME_LENGTH and name.isprintable()):
                raise Malformed(
                    f"class-names: must have 1 to {MAX_CLASS_NAME_LENGTH} printable characters, got {name[:40]!r}"
                )
        if len(set(names)) != len(names):
            raise Malformed("class-names: must differ, got one twice")
        ids = list_of(record, "class-ids", int) if "class-ids" in record else None
        if ids is not None and (
            len(ids) != len(names) or any(not a < b for a, b in itertools.pairwise([-1, *ids, LARGEST_WHOLE + 1]))
        ):
            raise Malformed(f"class-ids: must be {len(names)} ascending whole numbers from 0, got {ids!r:.80}")
        info = from_values(NodeInfo, record, class_names=tuple(names), class_ids=None if ids is None else tuple(ids))
        if info.targets not in ("", "labels", "numbers"):
            raise Malformed(f"targets: must be labels or numbers, got {info.targets[:40]!r}")
        if len(info.client_name) > MAX_CLIENT_NAME or not info.client_name.isprintable():
            raise Malformed(
                f"client-name: must be at most {MAX_CLIENT_NAME} printable characters, got {info.client_name[:40]!r}"
            )
        return info
    check_keys("node", record, {"partition-id", "num-partitions"}, {"trains", "any-app", "process", "threads"})
    info = from_values(NodeInfo, record)
    whole(record, "partition-id", 0, (info.num_partitions or 1) - 1)
    return info
