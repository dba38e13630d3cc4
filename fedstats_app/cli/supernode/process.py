"""The process that answers messages: `python -m fedstats_app.cli.supernode.process`, started by the SuperNode.

Where the system can fork (:data:`~fedstats_app.cli.supernode.flower.FORKS`), this process forks for each message. After
the first one, of which clients there are, it imports what others need: they begin with torch in memory, which takes
seconds otherwise, and nothing that they do is there for the next one. Elsewhere it answers one message itself. It opens
no connection and starts no thread.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message

from fedstats_app.cli.supernode import CodePolicy, RefusedApp
from fedstats_app.cli.supernode.flower import FORKS, RuntimeAddress, answer_task, client_app_of
from fedstats_app.wire.serving import GUARD_ERROR_CODE, guard, reason_of

logger = logging.getLogger("fedstats_app")


def command(runtime: RuntimeAddress, policy: CodePolicy, parent: int) -> list[str]:
    """Return the words that start this process, for a SuperNode, its owner's policy and its process id."""
    words = [sys.executable, "-P", "-m", __name__, runtime.address, str(parent)]
    words += ["--root-certificates", runtime.root_certificates] if runtime.root_certificates else []
    words += ["--approved", *sorted(policy.approved)] if policy.approved else []
    return [*words, "--any-app"] if policy.any_app else words


def main(words: Sequence[str] | None = None) -> None:
    """Answer the messages whose task tokens standard input has, one a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("parent", type=int)
    parser.add_argument("--root-certificates", default="")
    parser.add_argument("--approved", nargs="+", default=[])
    parser.add_argument("--any-app", action="store_true")
    given = parser.parse_args(words)
    policy = CodePolicy(frozenset(given.approved), given.any_app)
    runtime = RuntimeAddress(given.address, given.root_certificates)
    token = (_token_of_a_fork() if FORKS else sys.stdin.readline()).strip()
    if token:
        answer_task(runtime, token, given.parent, functools.partial(answer, policy))
        if FORKS and not policy.runs_others_code:
            # Python's own end takes apart what this process shares with its parent, and copies it for that: over a
            # second of processor time for each message. Code of others may have functions to be called then.
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


def _token_of_a_fork() -> str:
    """Fork for every token: return it in the new process, and "" in this one when there are no more."""
    from fedstats_app.client_app import ANSWERS, imported

    interrupted = signal.signal(signal.SIGINT, signal.SIG_DFL)
    child_ended = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while token := _next_token():
        if not os.fork():
            signal.signal(signal.SIGINT, interrupted)
            signal.signal(signal.SIGCHLD, child_ended)
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), 0)
            return token
        importlib.import_module("numpy.ma")  # by numpy.unique, on first use
        for module, _ in ANSWERS.values():
            imported(module)
    return ""


def _next_token() -> str:
    """Wait for it, without a buffer: the tokens of other messages are not for a new process. "" without a SuperNode."""
    with contextlib.suppress(OSError), open(0, "r+b", buffering=0, closefd=False) as line:
        line.write(b".")  # this process can take a task
        return line.readline().decode()
    return ""


def answer(
    policy: CodePolicy, message: Message, context: Context, content: bytes, run_config: Callable[[], dict[str, Any]]
) -> Message:
    """Return the reply: this package's, the bundle's where the owner allows its code, else a refusal.

    `content` is the bundle; `run_config` gives the run's configuration, or raises RefusedApp.
    """
    try:
        runs_bundle = policy.runs_bundle(content)
        config = run_config()
    except RefusedApp as error:
        reason = reason_of(error)
        logger.warning("%s was refused: %s", message.metadata.message_type, reason)
        return Message(Error(code=GUARD_ERROR_CODE, reason=reason), reply_to=message)
    node = {key: value for key, value in context.node_config.items() if key != "approved-apps"}
    # In a simulation nodes and server are one user's, here they are not.
    node["deployed"] = True
    if policy.any_app:
        logger.warning("--any-app: CODE THAT THE SERVER SENT runs on this node, and can read whatever this user can")
        node["any-app"] = True
    # A copy: code of the server's must not change what the SuperNode gives to the next message.
    own = Context(context.run_id, context.node_id, node, context.state, config, context.series_id)

    def app(message: Message, context: Context) -> Message:
        if runs_bundle:
            with tempfile.TemporaryDirectory() as folder:
                return client_app_of(content, Path(folder))(message, context)
        from fedstats_app.client_app import app as installed

        return installed(message, context)

    return guard(message, own, app)


if __name__ == "__main__":
    main()
