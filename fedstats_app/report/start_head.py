"""Which head is the best to start a training from, when those who score it may lie."""

from __future__ import annotations

from collections.abc import Mapping


def best_head(
    accuracies: Mapping[str, float], by_client: Mapping[str, Mapping[int, float]], weights: Mapping[int, int]
) -> str:
    """Return the most accurate head, or if one client alone decides which that is, the best without that client.

    Where leaving out some client would make another head the best, the one is left out that says most for or against.
    A client can only decide by saying more than all others together.

    Parameters
    ----------
    accuracies : mapping
        By head, of all samples; at least one.
    by_client : mapping
        By head and client; empty where the server evaluated.
    weights : mapping
        From client to the samples in its statistics, which it cannot choose any more when it evaluates.
    """
    best = max(accuracies, key=accuracies.__getitem__)
    clients = sorted(set().union(*by_client.values()))
    if len(clients) < 3:  # of two, one would always decide
        return best
    correct = {
        name: {client: weights.get(client, 0) * by_client.get(name, {}).get(client, 0.0) for client in clients}
        for name in accuracies
    }
    sums = {name: sum(of_head.values()) for name, of_head in correct.items()}

    def winner(left_out: int) -> str:
        return max([best, *accuracies], key=lambda name: sums[name] - correct[name][left_out])

    if all(winner(client) == best for client in clients):
        return best
    return winner(
        max(clients, key=lambda client: max(abs(one[client] - correct[best][client]) for one in correct.values()))
    )
