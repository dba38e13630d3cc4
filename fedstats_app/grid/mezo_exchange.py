"""FedMeZO's questions to clients: what each one lacks goes along, and a replica that differs is brought back."""

from __future__ import annotations

import time
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
    """One question to clients and what came of it: the answers of those whose replica is right.

    Attributes
    ----------
    wanted : str
        What was asked: see :class:`MezoRequest`.
    replayed : list of int
        Clients that were sent start and log because their replica was missing or differed.
    bytes_catch_up : int
        What nodes lacked besides question, seed and last update (``bytes_down``), the start included.
    """

    wanted: Wanted = ""
    replayed: list[int] = field(default_factory=list)
    bytes_catch_up: int = 0
    started: float = field(default_factory=time.perf_counter)

    @property
    def with_samples(self) -> dict[int, MezoReply]:
        """The answers that are means over something."""
        return {client: answer for client, answer in self.of.items() if answer.num_examples}


class MezoExchange:
    """Asks clients, keeping track of the round that each one's replica is known to have reached.

    Parameters
    ----------
    setup, start
        Of the training; sent to clients that lack them.
    clients : mapping
        From client to its number of samples, None where it is not known; its holder may change it.
    log : sequence of Update
        All updates so far, which the holder of the list also appends to.
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

    def messages(self, asked: MezoAnswers, clients: Iterable[int], message_type: str = MEZO) -> list[Message]:
        """Make a message to each client, with what it is thought to lack."""
        return self._to_clients(asked, {client: self._known.get(client, -1) for client in clients}, message_type)

    def ask(self, grid: Grid, clients: Iterable[int], wanted: Wanted, timeout: float | None) -> MezoAnswers:
        """Ask clients."""
        asked = MezoAnswers(wanted=wanted)
        replies = grid.send_and_receive(self.messages(asked, clients), timeout=timeout)
        self.collect(asked, replies, grid, timeout)
        return asked

    def collect(
        self, asked: MezoAnswers, replies: Iterable[Message], grid: Grid | None, timeout: float | None = None
    ) -> None:
        """Read the replies to a question; clients whose replica differs are asked again, from the start.

        Without a grid none is asked again; ``timeout`` is in seconds, for that.
        """
        end, expected = len(self.log), self.replica.digest()
        answers = self._read(asked, replies)
        wrong = [client for client, answer in answers.items() if answer.digest != expected]
        if wrong and grid is not None:
            asked.replayed = wrong
            again = self._to_clients(asked, dict.fromkeys(wrong, -1), restart=True)
            for client in wrong:
                del answers[client]
            answers |= self._read(asked, grid.send_and_receive(again, timeout=timeout))
        for client, answer in sorted(answers.items()):
            if answer.digest == expected:
                asked.of[client] = answer
                self._known[client] = end
            else:
                asked.failures[client] = f"its replica of round {end} differs, also after a replay"
        for client in asked.failures:
            self._known.pop(client, None)

    def note_following(self, clients: Iterable[int]) -> None:
        """Note that clients have answered a message of another type, and so are at the end of the log."""
        self._known.update(dict.fromkeys(clients, len(self.log)))

    def _to_clients(
        self, asked: MezoAnswers, known: Mapping[int, int], message_type: str = MEZO, *, restart: bool = False
    ) -> list[Message]:
        """Make a message to each client, given the last round it knows; the same content where that is the same."""
        number = len(self.log) + 1
        contents: dict[int, tuple[MezoRequest, RecordDict]] = {}
        for last in sorted(set(known.values())):
            setup, start = (self.setup, self.start) if last < 0 else (None, {})
            updates = tuple(self.log[max(last, 0) :])
            seed = self.seed(number)
            request = MezoRequest(self.training, number, seed, updates, asked.wanted, restart, setup, start)
            contents[last] = request, request.to_content()
        asked.bytes_down += sum(contents[last][0].round_bytes for last in known.values())
        asked.bytes_catch_up += sum(contents[last][0].catch_up_bytes for last in known.values())
        return [
            Message(contents[last][1], dst_node_id=client, message_type=message_type, group_id=str(number))
            for client, last in known.items()
        ]

    def _read(self, asked: MezoAnswers, replies: Iterable[Message]) -> dict[int, MezoReply]:
        num_scalars = {"": self.setup.num_directions, "curvature": CURVATURE_DIRECTIONS, "sync": 0}[asked.wanted]

        def read(reply: Message) -> MezoReply:
            known = self.clients[int(reply.metadata.src_node_id)]
            return read_mezo_reply(reply, num_scalars, known if num_scalars else None)

        answers = {}
        for client, _, answer in usable(replies, read, asked.failures, self.clients):
            answers[client] = answer
            asked.bytes_up += answer.num_bytes
        return answers
