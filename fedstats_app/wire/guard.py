"""Turn whatever happens in a ClientApp function into a reply: no reply hangs a simulation and wedges a SuperNode."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from flwr.app import ArrayRecord, Context, Error, Message

GUARD_ERROR_CODE = 100
# Flower cuts nothing; a traceback of megabytes must not travel.
MAX_REASON = 500

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
        reply = call_next(msg, context)
        if not isinstance(reply, Message):
            raise TypeError(f"the ClientApp must return a Message, got {type(reply).__name__}")
        if reply.has_content():
            for record in reply.content.values():
                if not isinstance(record, ArrayRecord):
                    # Raises here if it cannot be serialised, where it can still be answered. Arrays always can.
                    record.deflate()
        return reply
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the one place where everything must be caught
        logger.error("%s failed on this node:\n%s", msg.metadata.message_type, traceback.format_exc())
        return Message(
            Error(code=GUARD_ERROR_CODE, reason=f"{type(error).__name__}: {error}"[:MAX_REASON]), reply_to=msg
        )
