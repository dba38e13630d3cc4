"""Turn whatever happens in a ClientApp function into a reply: no reply hangs a simulation and wedges a SuperNode."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from flwr.app import ArrayRecord, Context, Error, Message

from fedstats_app.wire.errors import clean_reason

GUARD_ERROR_CODE = 100

logger = logging.getLogger("fedstats_app")


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
        return Message(Error(code=GUARD_ERROR_CODE, reason=reason_of(error)), reply_to=msg)


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
