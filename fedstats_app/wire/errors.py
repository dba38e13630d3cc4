"""The two ways a message can be refused."""


class RejectedReply(Exception):
    """A reply that must not be used; the message says what was wrong, what is allowed and what came."""


class RejectedRequest(Exception):
    """A request that a client does not answer; the message says why."""
