"""Several clients' requests in one message to the SuperNode that hosts them, and one reply with all their answers.

The request is the clients' common content plus a ConfigRecord ``clients`` with ``ids``; the reply has every client's
records under ``<id>.<name>`` and a ConfigRecord ``failed`` from id to reason. Without ``clients`` the message is for
the node itself, which then is one client.
"""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable, Sequence

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedstats_app.wire.errors import RejectedRequest, clean_reason
from fedstats_app.wire.guard import GUARD_ERROR_CODE, checked_reply, reason_of

# What a handler for one client looks like: client id is None where the node is the client.
ClientHandler = Callable[[Message, Context, int | None], Message]

logger = logging.getLogger("fedstats_app")


def pack_requests(content: RecordDict, client_ids: Sequence[int]) -> RecordDict:
    """Return the content of one message for several clients."""
    return RecordDict({**content, "clients": ConfigRecord({"ids": list(client_ids)})})


def unpack_reply(reply: Message, client_id: int | None, instruction: Message) -> Message:
    """Return one client's reply out of a SuperNode's, as from the node that was asked, whatever the reply says.

    Parameters
    ----------
    reply : Message
        The SuperNode's, from anybody.
    client_id : int or None
        Whose part to take; None: the node is the client, and all is its.
    instruction : Message
        The client's own instruction, to which the part replies.
    """
    if reply.has_error():
        return Message(Error(code=reply.error.code, reason=reply.error.reason), reply_to=instruction)
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


def _client_ids(msg: Message) -> list[int]:
    record = msg.content["clients"]
    ids = record.get("ids") if isinstance(record, ConfigRecord) else None
    if not isinstance(ids, list) or any(type(client_id) is not int for client_id in ids) or len(set(ids)) < len(ids):
        raise RejectedRequest(f"clients: must be a ConfigRecord with different integer ids, got {ids!r:.80}")
    return [client_id for client_id in ids if isinstance(client_id, int)]


def per_client(handler: ClientHandler) -> Callable[[Message, Context], Message]:
    """Turn a handler of one client into a ClientApp function for all that the SuperNode hosts.

    The loop over clients is here only. What one client's handler raises, or returns that cannot be sent, is that
    client's failure and nobody else's.
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
                logger.error("client %s failed: %s", client_id, reason_of(error) if failed else traceback.format_exc())
                failed[str(client_id)] = reason_of(error)
                continue
            if answer.has_error():
                failed[str(client_id)] = clean_reason(answer.error.reason)
                continue
            for name, record in answer.content.items():
                content[f"{client_id}.{name}"] = record
        content["failed"] = failed
        return Message(content, reply_to=msg)

    return for_all
