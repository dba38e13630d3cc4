"""FedMeZO's requests to clients, which include the updates that a client lacks, and the repair of replicas."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedstats_app.fedmezo.log import SEED_LIMIT, Update
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.grid.asking import Answers, usable
from fedstats_app.wire.mezo import CURVATURE_DIRECTIONS, MEZO, MezoReply, MezoRequest, Wanted, read_mezo_reply

# Keeps the rounds' seeds apart from every other draw by (seed, number).
SEED_STREAM = 0x3E20


@dataclass
class MezoAnswers(Answers[MezoReply]):
    """Answers to one request, of the clients whose replica is right.

    Attributes
    ----------
    wanted : str
        Kind of the request: see :class:`MezoRequest`.
    replayed : list of int
        Clients that were sent start and log because their replica was missing or differed.
    bytes_catch_up : int
        Bytes sent besides request, seed and last update (``bytes_down``): the start and earlier updates.
    """

    wanted: Wanted = ""
    replayed: list[int] = field(default_factory=list)
    bytes_catch_up: int = 0
    started: float = field(default_factory=time.perf_counter)

    @property
    def with_samples(self) -> dict[int, MezoReply]:
        """Answers of clients with at least one sample."""
        return {client: answer for client, answer in self.by_client.items() if answer.num_examples}


class MezoExchange:
    """Sends requests to clients, and keeps track of the last round that each client's replica has reached.

    Parameters
    ----------
    setup, start
        Of the training; sent to clients that lack them.
    clients : mapping
        From client to its number of samples, None if unknown; the caller may change it.
    log : sequence of Update
        All updates so far; the caller appends to it.
    replica : Replica
        The server's own, whose digest all others must have.
    training : int
        Number of the training in the run.
    """

    def __init__(
        self,
        setup: MezoSetup,
        start: Mapping[str, Tensor],
        clients: Mapping[int, int | None],
        log: Sequence[Update],
        replica: Replica,
        training: int,
    ) -> None:
        self.setup, self.start, self.clients, self.log = setup, dict(start), clients, log
        self.replica, self.training = replica, training
        self._known: dict[int, int] = {}

    def seed(self, server_round: int) -> int:
        """Return the seed of a round."""
        draw = np.random.default_rng([self.setup.request.seed, SEED_STREAM, self.training, server_round])
        return int(draw.integers(SEED_LIMIT))

    def ask(self, grid: Grid, clients: Iterable[int], wanted: Wanted, timeout: float | None) -> MezoAnswers:
        """Send a request to clients and return their answers."""
        answers = MezoAnswers(wanted=wanted)
        replies = grid.send_and_receive(self.messages(answers, clients), timeout=timeout)
        self.collect(answers, replies, grid, timeout)
        return answers

    def collect(
        self, answers: MezoAnswers, replies: Iterable[Message], grid: Grid | None, timeout: float | None = None
    ) -> None:
        """Read the replies to a request; clients whose replica differs are asked again, from the start.

        Without a grid they are not asked again; ``timeout`` is in seconds, for the second request.
        """
        end, expected = len(self.log), self.replica.digest()
        found = self._read(answers, replies)
        wrong = [client for client, answer in found.items() if answer.digest != expected]
        if wrong and grid is not None:
            answers.replayed = wrong
            again = self.messages(answers, wrong, restart=True)
            found = {client: answer for client, answer in found.items() if client not in wrong}
            found |= self._read(answers, grid.send_and_receive(again, timeout=timeout))
        for client, answer in sorted(found.items()):
            if answer.digest == expected:
                answers.by_client[client] = answer
                self._known[client] = end
            else:
                answers.failures[client] = f"its replica of round {end} differs, also after a replay"
        for client in answers.failures:
            self._known.pop(client, None)

    def note_following(self, clients: Iterable[int]) -> None:
        """Note that clients got a message of another type, which brings them to the end of the log."""
        self._known.update(dict.fromkeys(clients, len(self.log)))

    def messages(
        self, answers: MezoAnswers, clients: Iterable[int], message_type: str = MEZO, *, restart: bool = False
    ) -> list[Message]:
        """Make a message to each client with the updates that it lacks; those that lack the same share its content."""
        known = {client: -1 if restart else self._known.get(client, -1) for client in clients}
        number = len(self.log) + 1
        seed, contents = self.seed(number), dict[int, RecordDict]()
        for last, count in Counter(known.values()).items():
            setup, start = (self.setup, self.start) if last < 0 else (None, {})
            updates = tuple(self.log[max(last, 0) :])
            request = MezoRequest(self.training, number, seed, updates, answers.wanted, restart, setup, start)
            contents[last] = request.to_content()
            answers.bytes_down += count * request.round_bytes
            answers.bytes_catch_up += count * request.catch_up_bytes
        return [
            Message(contents[last], dst_node_id=client, message_type=message_type, group_id=str(number))
            for client, last in known.items()
        ]

    def _read(self, answers: MezoAnswers, replies: Iterable[Message]) -> dict[int, MezoReply]:
        num_scalars = {"": self.setup.num_directions, "curvature": CURVATURE_DIRECTIONS, "sync": 0}[answers.wanted]

        def read(reply: Message) -> MezoReply:
            known = self.clients[int(reply.metadata.src_node_id)]
            return read_mezo_reply(reply, num_scalars, known if num_scalars else None)

        found = {}
        for client, _, answer in usable(replies, read, answers.failures, self.clients):
            found[client] = answer
            answers.bytes_up += answer.num_bytes
        return found
