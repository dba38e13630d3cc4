"""Scoring heads on the samples that clients kept for it, by sums over clients."""

from __future__ import annotations

from flwr.app import Message

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.heads import CalibrationSums, ConfusionMatrix
from fedstats_app.strategies.base import StatisticsStrategy
from fedstats_app.wire import EVALUATE_HEADS, RejectedReply, evaluation_content, read_evaluation_reply


def evaluate_on_clients(
    grid: ClientGrid, strategy: StatisticsStrategy
) -> tuple[dict[str, ConfusionMatrix], dict[str, CalibrationSums], dict[int, str]]:
    """Send a finished strategy's heads to all clients that are in them and add up what they count.

    Clients that fail are left out and named.

    Parameters
    ----------
    grid : ClientGrid
        The one the strategy ran on.
    strategy : StatisticsStrategy
        With heads; its request had a holdout above 0.

    Returns
    -------
    confusion : dict
        From method to confusion matrix.
    calibration : dict
        From method to the sums from which its temperature is chosen.
    failures : dict
        From client to the reason why it is not in there.
    """
    heads = {name: (strategy.spec_index(name), head) for name, head in strategy.heads.items()}
    content = evaluation_content(strategy.request, heads)
    asked = [outcome.client for outcome in strategy.outcomes if outcome.in_heads]
    messages = [Message(content, dst_node_id=client, message_type=EVALUATE_HEADS) for client in asked]
    confusion = {name: ConfusionMatrix.zeros(strategy.num_classes) for name in heads}
    calibration = {name: CalibrationSums.zeros() for name in heads}
    failures: dict[int, str] = {}
    for reply in grid.send_and_receive(messages):
        try:
            received = read_evaluation_reply(reply, strategy.request, tuple(heads))
        except RejectedReply as error:
            failures[int(reply.metadata.src_node_id)] = str(error)
            continue
        for name, (counts, sums) in received.items():
            confusion[name] += counts
            calibration[name] += sums
    return confusion, calibration, failures
