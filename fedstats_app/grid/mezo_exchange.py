"""FedMeZO's questions to clients: what each one lacks goes along, and a replica that differs is brought back."""

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
from fedstats_app.wire.mezo import MEZO, Behind, MezoReply, MezoRequest, Wanted, read_mezo_reply

# Keeps the rounds' seeds apart from every other draw by (seed, number).
SEED_STREAM = 0x3E20


class ReplicasDiffer(RuntimeError):
    """No digest has a majority, and the server has no replica of its own to say which is right."""


@dataclass
class Asked(Answers[MezoReply]):
    """One question to clients and what came of it: the answers of those whose replica is right.

    Attributes
    ----------
    replayed : dict
        From every client that had to be sent more than the question, after it said so or its digest was wrong, to the
        reason.
    bytes_catch_up : int
        What nodes lacked besides question, seed and last update (``bytes_down``), the start included.
    """

    replayed: dict[int, str] = field(default_factory=dict)
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
        From client to its number of samples, None where it is not known.
    log : sequence of Update
        All updates so far, which the holder of the list also appends to.
    replica : Replica or None
        The server's own; without one the digest of most nodes counts.
    training : int
        Number of the training in the run.
    """

    def __init__(
        self,
        setup: MezoSetup,
        start: Mapping[str, Tensor],
        clients: Mapping[int, int | None],
        log: Sequence[Update],
        replica: Replica | None,
        training: int,
    ) -> None:
        self.setup, self.start, self.clients, self.log = setup, dict(start), dict(clients), log
        self.replica, self.training = replica, training
        self._known: dict[int, int] = {}

    def seed(self, server_round: int) -> int:
        """Return the seed of a round."""
        draw = np.random.default_rng([self.setup.request.seed, SEED_STREAM, self.training, server_round])
        return int(draw.integers(SEED_LIMIT))

    def messages(
        self, asked: Asked, clients: Iterable[int], wanted: Wanted = "", message_type: str = MEZO
    ) -> list[Message]:
        """Return a message to each client, with what it is thought to lack."""
        return self._to_clients(
            asked, {client: self._known.get(client, -1) for client in clients}, wanted, message_type
        )

    def ask(self, grid: Grid, clients: Iterable[int], wanted: Wanted, num_scalars: int, timeout: float | None) -> Asked:
        """Ask clients and return what they answered.

        Raises
        ------
        ReplicasDiffer
            If it is unknown which digest is right.
        """
        asked = Asked()
        replies = grid.send_and_receive(self.messages(asked, clients, wanted), timeout=timeout)
        self.collect(asked, replies, grid, wanted, num_scalars, timeout)
        return asked

    def collect(
        self,
        asked: Asked,
        replies: Iterable[Message],
        grid: Grid | None,
        wanted: Wanted,
        num_scalars: int,
        timeout: float | None = None,
    ) -> None:
        """Read the replies to a question, and ask those again that could not follow or whose replica differs.

        Parameters
        ----------
        asked : Asked
            The question, which is filled in.
        replies : iterable of Message
            From any client.
        grid : Grid or None
            To ask again; None for not.
        wanted : str
            What the question was.
        num_scalars : int
            How many scalars it asked for.
        timeout : float, optional
            Seconds for asking again.

        Raises
        ------
        ReplicasDiffer
            If it is unknown which digest is right.
        """
        end = len(self.log)
        answers, behind = self._read(asked, replies, num_scalars)
        expected = self._digest(answers)
        wrong = [client for client, answer in answers.items() if answer.digest != expected]
        following = {client: last for client, last in behind.items() if last <= end}
        restarting = dict.fromkeys(sorted({*wrong, *(behind.keys() - following.keys())}), -1)
        asked.of = {client: answer for client, answer in answers.items() if answer.digest == expected}
        asked.replayed.update({client: f"it knew {_round_in_words(last)}" for client, last in following.items()})
        asked.replayed.update(dict.fromkeys(restarting, f"its replica of round {end} differed"))
        again = self._to_clients(asked, following, wanted) + self._to_clients(asked, restarting, wanted, restart=True)
        if again and grid is not None:
            answers, behind = self._read(asked, grid.send_and_receive(again, timeout=timeout), num_scalars)
            expected = expected or self._digest(answers)
            for client, answer in answers.items():
                if answer.digest == expected:
                    asked.of[client] = answer
                else:
                    asked.failures[client] = f"its replica of round {end} differs, also after a replay"
            for client, last in behind.items():
                asked.failures[client] = f"it cannot follow: it knows {_round_in_words(last)}, not round {end}"
        asked.of = dict(sorted(asked.of.items()))
        self._known.update(dict.fromkeys(asked.of, end))
        for client in asked.failures:
            self._known.pop(client, None)

    def note_following(self, clients: Iterable[int]) -> None:
        """Note that clients have answered a message of another type, and so are at the end of the log."""
        self._known.update(dict.fromkeys(clients, len(self.log)))

    def _to_clients(
        self,
        asked: Asked,
        known: Mapping[int, int],
        wanted: Wanted,
        message_type: str = MEZO,
        *,
        restart: bool = False,
    ) -> list[Message]:
        """Return a message to each client, given the last round it knows; the same content where that is the same."""
        contents: dict[int, tuple[MezoRequest, RecordDict]] = {}
        messages = []
        for client, last in known.items():
            if last not in contents:
                request = self._request(last, wanted, restart)
                contents[last] = (request, request.to_content())
            request, content = contents[last]
            asked.bytes_down += request.round_bytes
            asked.bytes_catch_up += request.catch_up_bytes
            group = str(len(self.log) + 1)
            messages.append(Message(content, dst_node_id=client, message_type=message_type, group_id=group))
        return messages

    def _request(self, last: int, wanted: Wanted, restart: bool) -> MezoRequest:
        number = len(self.log) + 1
        return MezoRequest(
            self.training,
            number,
            self.seed(number),
            tuple(self.log[max(last, 0) :]),
            wanted,
            restart,
            self.setup if last < 0 else None,
            self.start if last < 0 else {},
        )

    def _read(
        self, asked: Asked, replies: Iterable[Message], num_scalars: int
    ) -> tuple[dict[int, MezoReply], dict[int, int]]:
        def read(reply: Message) -> MezoReply | Behind:
            known = self.clients[int(reply.metadata.src_node_id)]
            return read_mezo_reply(reply, num_scalars, known if num_scalars else None)

        answers: dict[int, MezoReply] = {}
        behind: dict[int, int] = {}
        for client, _, answer in usable(replies, read, asked.failures, self.clients):
            if isinstance(answer, Behind):
                behind[client] = answer.round
            else:
                answers[client] = answer
                asked.bytes_up += answer.num_bytes
        return answers, behind

    def _digest(self, answers: Mapping[int, MezoReply]) -> bytes:
        """Return the digest that every replica must have: the server's, or that of most nodes; b"" without any."""
        if self.replica is not None:
            return self.replica.digest()
        votes = Counter(answer.digest for answer in answers.values()).most_common(2)
        if len(votes) > 1 and votes[0][1] == votes[1][1]:
            raise ReplicasDiffer(
                f"round {len(self.log) + 1}: two digests of the replicas have {votes[0][1]} nodes each, and the server "
                "has no replica of its own to tell which is right"
            )
        return votes[0][0] if votes else b""


def _round_in_words(last: int) -> str:
    return "nothing of it" if last < 0 else f"round {last}"
