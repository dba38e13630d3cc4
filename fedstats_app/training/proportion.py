"""Typical update sizes in a round, clients that decide alone, and a cap on one client's weight."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

# With fewer clients we cannot tell which one is the outlier.
FEWEST_TO_COMPARE = 3
# A client decides an estimate alone if the others' is this many times larger or smaller.
DECIDES = 8.0
# Updates of clients whose data the model knows already are tiny. The upper quartile is the size of a useful update, if
# fewer than a quarter of the clients lie.
QUARTILE = 0.75


def usual_size(sizes: Iterable[float]) -> float:
    """Return the upper quartile of clients' sizes, the lower of two neighbours; infinity if too few can be compared."""
    ordered = sorted(sizes)
    return ordered[int(QUARTILE * (len(ordered) - 1))] if len(ordered) >= FEWEST_TO_COMPARE else math.inf


def allowances(num_examples: Mapping[int, int]) -> dict[int, float]:
    """Return the allowance of each client, in multiples of the usual size, from its number of samples.

    Parameters
    ----------
    num_examples : mapping
        From client to its samples, n_k, at least 1.

    Returns
    -------
    dict
        From client to n / n_k, for n the mean of all, where it has fewer: the mean over few samples varies more, and
        then weighs no more than an average client's. n_k / n where it has more, for it takes more steps; and in all
        cases times 1 + 2 / sqrt(n_k).
    """
    mean = math.fsum(num_examples.values()) / max(1, len(num_examples))
    return {
        client: max(1.0, mean / number, number / mean) * (1.0 + 2.0 / math.sqrt(number))
        for client, number in num_examples.items()
    }


def largest_share(num_clients: int) -> float:
    """Return the largest share of one client in a round: a fifth, or with few clients 1.5 times an equal share."""
    return min(1.0, max(0.2, 1.5 / max(1, num_clients)))


def capped(num_examples: Mapping[int, int], share: float | None = None) -> dict[int, int]:
    """Return weights of which none is more than a share of all: the largest counts are lowered to one number.

    The share is in (0, 1], by default :func:`largest_share`; below 1 / K for K clients all weigh the same.
    """
    share = largest_share(len(num_examples)) if share is None else share
    most = max(int(_level(list(num_examples.values()), share)), min(num_examples.values(), default=1))
    return {client: min(number, most) for client, number in num_examples.items()}


def _level(counts: Sequence[int], share: float) -> float:
    """Return the largest t with t <= share sum_k min(n_k, t), or 0 if there is none."""
    if share >= 1.0:
        return float(max(counts, default=0))
    # With the largest j cut: t = share rest_j / (1 - j share), where rest_j are the samples of those not cut.
    rest = float(sum(counts))
    for number, count in enumerate(sorted(counts, reverse=True)):
        uncut = 1.0 - number * share
        if uncut <= 0.0:
            break
        if count <= share * rest / uncut:
            return share * rest / uncut
        rest -= count
    return 0.0


def deciding(num_examples: Mapping[int, int], estimate: Callable[[Mapping[int, int]], float]) -> list[int]:
    """List the clients that alone decide an estimate, a positive number: leaving out any other moves it little.

    Both take clients with their numbers of samples. The list is empty for fewer than three clients. A client with half
    of all samples is never in it: it may rightly decide.
    """
    if len(num_examples) < FEWEST_TO_COMPARE:
        return []
    total = sum(num_examples.values())
    without = {client: estimate({k: n for k, n in num_examples.items() if k != client}) for client in num_examples}
    usual = statistics.median(without.values())

    def decides(client: int) -> bool:
        ratio = without[client] / usual if usual else math.inf
        return not 1.0 / DECIDES <= ratio <= DECIDES and 2 * num_examples[client] < total

    return [client for client in num_examples if decides(client)]
