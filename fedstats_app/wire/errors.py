"""The two ways a message can be refused, and reasons that are safe to send, log and show."""

from __future__ import annotations

import re

# Flower cuts nothing; a traceback of megabytes must not travel, nor fill a log.
MAX_REASON = 500
# Of a longer reason the beginning tells where it comes from, and the end what happened (tracebacks name it last).
HEAD_OF_REASON = 100

ANSI_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def clean_reason(reason: object) -> str:
    """Return a reason as one short line of printable text that any wire takes.

    Line breaks and control characters of a stranger must not forge lines of the log. A lone surrogate (from a file
    name that is no UTF-8) cannot be serialised, and a reply that cannot be serialised wedges a SuperNode.
    """
    text = " ".join(ANSI_ESCAPE.sub("", str(reason)).split())
    if len(text) > MAX_REASON:
        text = f"{text[:HEAD_OF_REASON]} ... {text[HEAD_OF_REASON + 5 - MAX_REASON :]}"
    return "".join(character if character.isprintable() else "?" for character in text)


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
