"""Serving messages: several clients in one, and a reply to whatever happens.

A request for several clients is their common content plus a ConfigRecord ``clients`` with ``ids``; the reply has every
client's records under ``<id>.<name>`` and a ConfigRecord ``failed`` from id to reason. Without ``clients`` the message
is for the node itself, which then is one client. No reply at all would hang a simulation and wedge a SuperNode.
"""

from __future__ import annotations

import functools
import logging
import re
import traceback
from collections.abc import Callable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

GUARD_ERROR_CODE = 100
# Flower cuts nothing; a traceback of megabytes must not travel, nor fill a log.
MAX_REASON = 500
# Of a longer reason the beginning tells where it comes from, and the end what happened (tracebacks name it last).
HEAD_OF_REASON = 100
# Of a stranger's megabytes so many characters at either end are looked at.
_LOOKED_AT = 10_000

WITHHELD = "the reason is in the log of this node"

ANSI_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# What a handler for one client looks like: client id is None where the node is the client.
ClientHandler = Callable[[Message, Context, int | None], Message]

logger = logging.getLogger("fedstats_app")


class RejectedReply(Exception):
    """A reply that must not be used; the message says what was wrong, what is allowed and what came.

    Parameters
    ----------
    reason : str
        May hold what a stranger sent: it is cleaned by :func:`clean_reason`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(clean_reason(reason))


class RejectedRequest(Exception):
    """A request that a client does not answer; the message says why."""

    for_server = True


def clean_reason(reason: object) -> str:
    """Return a reason as one short line of printable text that any wire takes.

    Line breaks and control characters of a stranger must not forge lines of the log. A lone surrogate (from a file
    name that is no UTF-8) cannot be serialised, and a reply that cannot be serialised wedges a SuperNode.
    """
    raw = str(reason)
    if len(raw) > 2 * _LOOKED_AT:  # before anything is made of it: the list of its words takes several times its size
        raw = f"{raw[:_LOOKED_AT]} ... {raw[-_LOOKED_AT:]}"
    text = " ".join(ANSI_ESCAPE.sub("", raw).split())
    if len(text) > MAX_REASON:
        text = f"{text[:HEAD_OF_REASON]} ... {text[HEAD_OF_REASON + 5 - MAX_REASON :]}"
    if text.isprintable():  # nearly always, and character by character it takes ten times as long
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


def guard(msg: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Mod for a whole ClientApp: exceptions, exits, None and unserialisable replies become error replies.

    Parameters
    ----------
    msg : Message
        The instruction.
    context : Context
        The node's.
    call_next : callable
        The rest of the app.
    """
    try:
        return checked_reply(call_next(msg, context))
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the one place where everything must be caught
        logger.error("%s failed on this node:\n%s", msg.metadata.message_type, traceback.format_exc())
        return Message(Error(code=GUARD_ERROR_CODE, reason=reason_to_send(error, context)), reply_to=msg)


def checked_reply(reply: object) -> Message:
    """Return what a handler returned if it is a message that can be sent.

    Raises
    ------
    TypeError
        If it is no Message.
    Exception
        Whatever Flower raises if a record cannot be serialised: here, where it can still be answered.
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
        said = None if reply.error.reason is None else clean_reason(reply.error.reason)
        return Message(Error(code=reply.error.code, reason=said), reply_to=instruction)
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
