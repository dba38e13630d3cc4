"""InProcessGrid: SuperNodes that are objects of this process."""

from __future__ import annotations

import copy
import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedstats_app.base.threads import compute_with

FIRST_NODE_ID = 1000
# Flower's error code for a ClientApp that raised.
CLIENT_APP_RAISED = 2
# The sender that Flower gives to messages of a ServerApp, and to errors of the SuperLink itself.
SERVER_NODE_ID = 1
# Waits for a reply are this long: on Windows a thread that waits without an end hears no Ctrl-C.
SECONDS_PER_WAIT = 0.5

_run_lock = threading.Lock()

App = Callable[[Message, Context], Message]
Value = str | int | float | bool


class ObjectGrid(Grid):
    """SuperNodes that are objects of this process; a subclass says when each message is answered.

    Every message is copied on its way, and each node's state is kept between messages, as in Flower's simulation.

    Attributes
    ----------
    app : callable
        The ClientApp, or a handler of one message.
    contexts : dict
        From node id to the node's context.
    """

    def __init__(self, app: App, contexts: Mapping[int, Context]) -> None:
        self.app, self.contexts = app, dict(contexts)
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
        return list(self.contexts)

    def give_id(self, msg: Message) -> str:
        """Give a message its id, as Flower's SuperLink does; Flower has no public way."""
        msg.metadata.__dict__["_message_id"] = message_id = f"message-{next(self._ids)}"
        return message_id

    def answer(self, msg: Message) -> Message:
        """Call the ClientApp; what it raises becomes an error reply, and leaves its node's state."""
        node = self.contexts[msg.metadata.dst_node_id]
        state, run_config = copied_content(node.state), dict(node.run_config)
        context = Context(node.run_id, node.node_id, dict(node.node_config), state, run_config)
        try:
            answer = self.app(msg, context)
            content = copied_content(answer.content) if answer.has_content() else answer.error
        except Exception as error:  # noqa: BLE001  # Flower catches as widely
            content = Error(code=CLIENT_APP_RAISED, reason=f"{type(error)}:<'{error}'>")
        else:
            node.state = context.state
        reply = Message(content, reply_to=msg)
        self.give_id(reply)
        return reply


class InProcessGrid(ObjectGrid):
    """Calls a ClientApp for each message, one after another in their order, in a thread beside the server's.

    Clients compute while the server adds up what others sent. The caller must :meth:`close` it.

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
        super().__init__(app, contexts_of(node_configs, run_id, run_config, FIRST_NODE_ID))
        self._threads = 1
        self._worker = ThreadPoolExecutor(1, "fedstats-clients", lambda: compute_with(self._threads))
        self._answers: dict[str, Future[Message]] = {}
        self._busy = 0  # the worker's thread while it answers

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages to nodes, and return their ids; a message to no node is left out, as in Flower's simulation."""
        import torch  # a run's first line stands before it

        self._threads = torch.get_num_threads()
        taken = []
        for msg in messages:
            message_id = self.give_id(msg)
            if msg.metadata.dst_node_id in self.contexts:
                taken.append(message_id)
                self._answers[message_id] = self._worker.submit(self._reply, copied(msg))
        return taken

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Yield the replies to messages that are there; if there is none, wait for one that will come.

        Raises
        ------
        BaseException
            If the ClientApp ended with one that is no error, such as KeyboardInterrupt.
        """
        answers = {name: self._answers[name] for name in message_ids if name in self._answers}
        while answers and not any(answer.done() for answer in answers.values()):
            wait(answers.values(), SECONDS_PER_WAIT, FIRST_COMPLETED)
        for message_id, answer in answers.items():
            if answer.done():
                del self._answers[message_id]
                yield answer.result()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return the replies that are there within some seconds, by default all."""
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
        self._busy = threading.get_ident()
        try:
            return self.answer(msg)
        finally:
            self._busy = 0


def contexts_of(
    node_configs: Sequence[Mapping[str, Value]], run_id: int, run_config: Mapping[str, Value], first_node_id: int
) -> dict[int, Context]:
    """Make the nodes' contexts by node id, which counts from the first."""
    return {
        node: Context(run_id, node, dict(node_config), RecordDict(), dict(run_config))
        for node, node_config in enumerate(node_configs, start=first_node_id)
    }


@contextmanager
def task(run_id: int) -> Iterator[None]:
    """Let this process build messages of a run, as Flower's processes for tasks do; Flower has no public way.

    Raises
    ------
    RuntimeError
        If another run is under way in this process.
    """
    if not _run_lock.acquire(blocking=False):
        raise RuntimeError("another run is under way in this process: one at a time")
    before = (TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id)
    try:
        begin_task(run_id)
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id = before
        _run_lock.release()


def begin_task(run_id: int) -> None:
    """Give this process a run: Flower builds no message from a server outside a run."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, run_id, SERVER_NODE_ID


def copied(msg: Message) -> Message:
    """Make the message that a receiver gets: nothing of it is shared with the sender."""
    data, content = msg.metadata, copied_content(msg.content)
    made = Message(content, data.dst_node_id, data.message_type, ttl=data.ttl, group_id=data.group_id)
    made.metadata.__dict__["_message_id"] = data.message_id
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
