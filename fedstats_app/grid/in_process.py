"""InProcessGrid: SuperNodes that are objects of this process."""

from __future__ import annotations

import copy
import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid

FIRST_NODE_ID = 1000
# What Flower answers for a ClientApp that raised.
CLIENT_APP_RAISED = 2
# Who waits for a reply looks up so often: on Windows a thread that waits without an end hears no Ctrl-C.
SECONDS_PER_WAIT = 0.5

App = Callable[[Message, Context], Message]
Value = str | int | float | bool


class InProcessGrid(Grid):
    """Calls a ClientApp for each message, one after another in their order, in a thread beside the server's.

    Clients compute while the server adds up what others sent. Every message is copied on its way, and each node's state
    is kept between messages, as Flower's simulation does it. The caller must :meth:`close` it.

    Parameters
    ----------
    app : callable
        The ClientApp.
    node_configs : sequence of mapping
        One per node.
    run_id : int
    run_config : mapping
        With all defaults.
    """

    def __init__(
        self, app: App, node_configs: Sequence[Mapping[str, Value]], run_id: int, run_config: Mapping[str, Value]
    ) -> None:
        self._app = app
        self._contexts = {
            node: Context(run_id, node, dict(node_config), RecordDict(), dict(run_config))
            for node, node_config in enumerate(node_configs, start=FIRST_NODE_ID)
        }
        threads = torch.get_num_threads()
        self._worker = ThreadPoolExecutor(1, "fedstats-clients", lambda: _compute_with(threads))
        self._answers: dict[str, Future[Message]] = {}
        self._busy = 0  # the worker's thread while it answers
        self._ids = itertools.count(1)
        self._run: object = None

    def set_run(self, run: object) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> object:  # type: ignore[override]  # Flower's own type is not public
        """The run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages to nodes, and return their ids; a message to no node is left out, as in Flower's simulation."""
        taken = []
        for msg in messages:
            self._name(msg)
            if msg.metadata.dst_node_id in self._contexts:
                taken.append(msg.metadata.message_id)
                self._answers[taken[-1]] = self._worker.submit(self._reply, copied(msg))
        return taken

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Yield the replies to messages that are there; if there is none, wait for one that will come.

        Raises
        ------
        BaseException
            What the ClientApp raised where it was no error but an end, such as KeyboardInterrupt.
        """
        asked = {one: self._answers[one] for one in message_ids if one in self._answers}
        while asked and not any(answer.done() for answer in asked.values()):
            wait(asked.values(), SECONDS_PER_WAIT, FIRST_COMPLETED)
        for message_id, answer in asked.items():
            if answer.done():
                del self._answers[message_id]
                yield answer.result()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return the replies that are there within so many seconds, by default all."""
        waiting, replies = self.push_messages(messages), []
        until = None if timeout is None else time.monotonic() + timeout
        while waiting and (until is None or time.monotonic() < until):
            replies += (new := list(self.pull_messages(waiting)))
            waiting = waiting[len(new) :]
        return replies

    def close(self) -> None:
        """Begin with no further message, and end what is under way, as Ctrl-C would in the main thread."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        if self._busy:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._busy), ctypes.py_object(KeyboardInterrupt))
        self._worker.shutdown()

    def _reply(self, msg: Message) -> Message:
        """Ask the ClientApp; what it raises is an error reply, and leaves its node's state."""
        node = self._contexts[msg.metadata.dst_node_id]
        state, run_config = copied_content(node.state), dict(node.run_config)
        context = Context(node.run_id, node.node_id, dict(node.node_config), state, run_config)
        self._busy = threading.get_ident()
        try:
            answer = self._app(msg, context)
            content = copied_content(answer.content) if answer.has_content() else answer.error
        except Exception as error:  # noqa: BLE001  # Flower catches as widely
            content = Error(code=CLIENT_APP_RAISED, reason=f"{type(error)}:<'{error}'>")
        else:
            node.state = context.state
        finally:
            self._busy = 0
        reply = Message(content, reply_to=msg)
        self._name(reply)
        return reply

    def _name(self, msg: Message) -> None:
        give_id(msg, f"message-{next(self._ids)}")


def _compute_with(threads: int) -> None:
    torch.get_num_threads()  # asked for the first time, torch sets it to what another thread has last set
    torch.set_num_threads(threads)


def give_id(msg: Message, message_id: str) -> None:
    """Give a message its id, as Flower's SuperLink does; Flower has no public way."""
    msg.metadata.__dict__["_message_id"] = message_id


def copied(msg: Message) -> Message:
    """Make the message that a receiver gets: nothing of it is shared with the sender."""
    data, content = msg.metadata, copied_content(msg.content)
    made = Message(content, data.dst_node_id, data.message_type, ttl=data.ttl, group_id=data.group_id)
    give_id(made, data.message_id)
    return made


def copied_content(content: RecordDict) -> RecordDict:
    """Return a deep copy.

    Flower's own bytes of a message would do the same with several copies, and not beyond 2 GB. The bytes of arrays are
    copied too: they cannot be changed as such, but a tensor that is made over them could change them.
    """
    made = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            arrays = {
                key: Array(array.dtype, array.shape, array.stype, bytes(memoryview(array.data)))
                for key, array in record.items()
            }
            made[name] = ArrayRecord(arrays)
        else:
            # Their values are numbers, texts, bytes, and lists of those.
            made[name] = copy.deepcopy(record)
    return made
