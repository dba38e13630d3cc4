"""The way to clients: which SuperNode hosts whom, what may be outstanding, who was silent; pushing messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from flwr.app import Message
from flwr.serverapp import Grid

from fedstats_app.grid.progress import Progress

# Replies whose sizes are remembered, and the share of them that the estimate covers: the few largest do not count, so
# that one node cannot make the window, and with it the run, as slow as it likes by sending large replies.
SIZES_REMEMBERED, SHARE_COVERED = 128, 0.9


class Silences:
    """Remembers from round to round who did not answer in time.

    A client that timed out is asked again after 2 rounds, then after 4, 8 and so on: all in all it costs as many time
    limits as its absence has digits in base 2, and it misses at most about as many rounds again as it was silent for.
    An answer, also one that is an error, ends that. Outside of rounds nobody is left out.
    """

    def __init__(self) -> None:
        self._round = 0
        self._times: dict[int, int] = {}
        self._until: dict[int, int] = {}

    def next_round(self) -> None:
        """Begin a round."""
        self._round += 1

    @contextmanager
    def forgotten_afterwards(self) -> Iterator[None]:
        """Go through rounds; after them it is forgotten who was silent."""
        try:
            yield
        finally:
            self._round = 0
            self._times.clear()
            self._until.clear()

    def rests(self, client: int) -> bool:
        """Return whether a client is not to be asked now."""
        return self._round < self._until.get(client, 0)

    def reason(self, client: int) -> str:
        """Return in words why a client is not asked."""
        times, left = self._times[client], self._until[client] - self._round
        return f"not asked: it let {times} request(s) time out, and is asked again in {left} round(s)"

    def wake(self, clients: Iterable[int]) -> None:
        """Ask clients in any case, because the others would be too few."""
        for client in clients:
            self._until.pop(client, None)

    def note_timeout(self, client: int) -> None:
        """Note that a client's time ran out."""
        if self._round:
            self._times[client] = self._times.get(client, 0) + 1
            self._until[client] = self._round + 2 ** self._times[client]

    def note_answer(self, client: int) -> None:
        """Note that a client answered."""
        self._times.pop(client, None)
        self._until.pop(client, None)


def push(grid: Grid, messages: Sequence[Message]) -> list[str | None]:
    """Push messages and return one id for each, None for a message that was refused.

    Flower's deployment has an empty entry for a refused message; its simulation leaves the entry out, but both note
    the id in the message itself.
    """
    ids = list(grid.push_messages(messages))
    if len(ids) == len(messages):
        return [message_id or None for message_id in ids]
    accepted = set(ids)
    own = [message.metadata.message_id for message in messages]
    return [message_id if message_id in accepted else None for message_id in own]


class Link:
    """SuperNodes as the way to clients: who hosts whom, how long a reply may take, how many may be outstanding.

    Parameters
    ----------
    inner : Grid
        Flower's.
    hosts : mapping, optional
        From client id to the id of the SuperNode that hosts it. By default every node of ``inner`` is one client and
        messages pass as they are.
    reply_timeout : float
        Seconds that a request may take per client in it, counted from when it was sent or, since SuperNodes and
        simulated workers take requests one after another, from the last reply of anybody.
    window_bytes : int
        Replies that may be outstanding, in bytes, going by the larger ones of the latest replies; at least one client.
    expected_reply_bytes : int
        Size of a reply, for as long as none was seen.

    Attributes
    ----------
    silences : Silences
        Which clients are not asked for some rounds.
    progress : Progress
        Whose steps say how many clients have answered.
    """

    def __init__(
        self,
        inner: Grid,
        hosts: Mapping[int, int] | None = None,
        *,
        reply_timeout: float = 600.0,
        window_bytes: int = 128 * 2**20,
        expected_reply_bytes: int = 2**20,
    ) -> None:
        if reply_timeout <= 0 or window_bytes <= 0 or expected_reply_bytes <= 0:
            raise ValueError(
                "reply_timeout, window_bytes and expected_reply_bytes must be positive, "
                f"got {reply_timeout}, {window_bytes} and {expected_reply_bytes}"
            )
        self.inner = inner
        self.hosts = None if hosts is None else dict(hosts)
        self.reply_timeout = reply_timeout
        self.window_bytes = window_bytes
        self.reply_bytes = expected_reply_bytes
        self.wire_messages = 0
        # A hook for whoever keeps account of what left each client; it sees every reply before it is used.
        self.on_reply: Callable[[Message], None] | None = None
        self.silences = Silences()
        self.progress = Progress()
        self._sizes: deque[int] = deque(maxlen=SIZES_REMEMBERED)

    def host(self, client_id: int) -> int:
        """Return the SuperNode that hosts a client."""
        return client_id if self.hosts is None else self.hosts[client_id]

    @property
    def num_hosts(self) -> int:
        """Number of SuperNodes that host clients."""
        return max(1, len(set(self.inner.get_node_ids() if self.hosts is None else self.hosts.values())))

    def note_reply_size(self, size: int) -> None:
        """Take the bytes of one client's reply into the estimate that the window goes by."""
        self._sizes.append(size)
        covered = sorted(self._sizes)[int(SHARE_COVERED * (len(self._sizes) - 1))]
        self.reply_bytes = max(covered, 1024)
