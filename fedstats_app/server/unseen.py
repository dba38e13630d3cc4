"""Accuracy at a site that is not in the head: each site judges the head that was solved without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fedstats_app.grid.evaluation import evaluate_without_each
from fedstats_app.heads import LinearHead
from fedstats_app.report.method_result import client_spread, measure_of
from fedstats_app.server.run import Run
from fedstats_app.server.scoring import able_clients
from fedstats_app.statistics import ClientStatistics
from fedstats_app.statistics.collected import sum_without
from fedstats_app.strategies import StatisticsStrategy

# Every site costs a solve, and a head in memory: with more, users would wait for minutes.
MOST_SITES = 50


def score_unseen(
    run: Run, strategy: StatisticsStrategy, kept: Iterable[tuple[int, ClientStatistics]], method: str
) -> dict[str, Any] | None:
    """Solve one method's head without each site in turn, and let the site judge it on its training samples.

    The head's own ridge is chosen again, as in a run that the site did not take part in. Classes that only this site
    has are wrong. In a simulation clients are to be the values of a column, as real sites are.

    Returns
    -------
    dict or None
        `method`, `num_clients` and `num_examples`; of one class a sample the entries of
        :func:`fedstats_app.report.method_result.client_spread` and `worst`, the name of the site with the least
        accuracy; of several labels or numbers `measure` and `value` over all samples. None if single sites are not
        known (secure sums, noise), fewer than 2 or more than ``MOST_SITES`` hold samples, or none answered.
    """
    able = able_clients(run, strategy)
    if run.config.federation.sums_only or not strategy.heads or run.extension.num_added:
        return None
    if not 2 <= len(able) <= MOST_SITES:
        return None

    def heads() -> Iterator[tuple[int, LinearHead]]:
        for client, sent in kept:
            if client in able:
                rest = sum_without(strategy.collection.total, sent)
                yield client, strategy.methods()[method].head(rest)

    with run.progress.doing("leaving each site out in turn"):
        scores = evaluate_without_each(run.grid, strategy.request, method, heads(), able)
    for client, reason in scores.failures.items():
        run.progress.say(f"{run.site(client)} did not judge a head without it: {reason}")
    if not scores.num_examples:
        return None
    found = {"method": method, "num_clients": len(scores.examples), "num_examples": scores.num_examples}
    if scores.targets:
        measure, value = measure_of({"targets": scores.targets[method].measures()})
        return None if value is None else {**found, "measure": measure, "value": value}
    accuracies = scores.accuracies[method]
    worst = min(accuracies, key=accuracies.__getitem__)
    return {**found, "worst": run.site(worst), **(client_spread(accuracies) or {})}
