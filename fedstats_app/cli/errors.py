"""What ends a command."""


class CommandError(Exception):
    """A command cannot do its work; the message says why and what to do."""
