"""What one client can do to a round of training: updates out of all proportion, long ones, large shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message, MetricRecord
from torch import Tensor

from fedstats_app.training.proportion import allowances, capped, usual_size
from fedstats_app.wire.arrays import to_record, to_tensors


@dataclass(frozen=True)
class Update:
    """A client's reply that passed the checks.

    Attributes
    ----------
    reply : Message
        With ``arrays`` and ``metrics``.
    num_examples : int
        What it weighs.
    length : float
        Euclidean, of the change of all arrays together.
    """

    reply: Message
    num_examples: int
    length: float


@dataclass(frozen=True)
class Limited:
    """What is left of a round's updates.

    Attributes
    ----------
    replies : list of Message
        To average, in their order.
    left_out, clipped : dict
        From clients that are not among them, or were shortened, to how many times the usual length their update is.
    """

    replies: list[Message]
    left_out: Mapping[int, float]
    clipped: Mapping[int, float]


@dataclass(frozen=True)
class UpdateLimits:
    """Limits on what one client can do to a round.

    The usual length is the upper quartile over the round's clients
    (:func:`~fedstats_app.training.proportion.usual_size`). A client with more samples than the mean takes more steps,
    and one with fewer weighs less: in both cases as many times the usual length are as usual.

    Attributes
    ----------
    clip : float
        An update longer than this times the usual length is shortened to that; 0 for never.
    outlier : float
        A client whose update is longer than this times the usual length is left out; 0 for never.
    max_share : float
        Of the samples of a round, the most that count for one client.
    """

    clip: float = 0.0
    outlier: float = 4.0
    max_share: float = 1.0

    def apply(self, updates: Mapping[int, Update], current: Mapping[str, Tensor]) -> Limited:
        """Return what is to be averaged of a round's updates; what is within all limits stays as it came.

        Parameters
        ----------
        updates : mapping
            From client to update.
        current : mapping
            What clients started from, by name.
        """
        times = times_usual(
            {client: one.length for client, one in updates.items()},
            {client: one.num_examples for client, one in updates.items()},
        )
        left_out = {client: ratio for client, ratio in times.items() if ratio > self.outlier > 0.0}
        kept = {client: one for client, one in updates.items() if client not in left_out}
        clipped = {client: times[client] for client in kept if times[client] > self.clip > 0.0}
        weights = capped({client: one.num_examples for client, one in kept.items()}, self.max_share)
        for client, one in kept.items():
            if client in clipped:
                _shorten(one.reply, current, self.clip / clipped[client])
            if weights[client] != one.num_examples:
                one.reply.content["metrics"] = _weighing(one.reply, weights[client])
        return Limited([one.reply for one in kept.values()], left_out, clipped)


def times_usual(lengths: Mapping[int, float], num_examples: Mapping[int, int]) -> dict[int, float]:
    """Return how many times the usual length, over its allowance, each client's update is.

    Parameters
    ----------
    lengths, num_examples : mapping
        From client to the length of its update and to its samples.
    """
    usual, allowed = usual_size(lengths.values()), allowances(num_examples, steps=True)
    return {client: length / (usual * allowed[client]) if usual else 0.0 for client, length in lengths.items()}


def update_length(current: Mapping[str, Tensor], reply: Message) -> float:
    """Return the Euclidean length of all changes in a reply together."""
    changed = to_tensors(reply.content.array_records["arrays"])
    return math.sqrt(
        math.fsum(float((changed[name].double() - tensor.double()).square().sum()) for name, tensor in current.items())
    )


def _shorten(reply: Message, current: Mapping[str, Tensor], factor: float) -> None:
    changed = to_tensors(reply.content.array_records["arrays"])
    reply.content["arrays"] = to_record(
        {
            name: (tensor.double() + factor * (changed[name].double() - tensor.double())).float()
            for name, tensor in current.items()
        }
    )


def _weighing(reply: Message, num_examples: int) -> MetricRecord:
    return MetricRecord({**reply.content.metric_records["metrics"], "num-examples": num_examples})
