"""Which method a run would be told to take, over data sets, numbers of clients and seeds.

    python -m research.benchmarks.advice --clients 20 100 --seeds 5 conf/ag-news.toml \\
      "dataset=builtin backbone=resnet18"

An experiment is a TOML file of run-config keys, or ``key=value`` pairs in one word; without any, the default run. Its
features are computed once. Clients answer in this process, by the app's own requests and replies, so bytes are those
that a run sends. The program fails where the advice is not the cheapest method that a score test, whose inversion
Wilson's interval is, does not tell from the best.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Message

from fedstats_app.data.clients import partitions
from fedstats_app.report.advice import Advice, Candidate, advise
from fedstats_app.server.asking import solved_heads
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire import read_statistics_request, statistics_reply
from research.benchmarks.answers import ask
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, run

# What the backbone's digest takes in a real reply.
FINGERPRINT = "0" * 64
# The 97.5% point of the normal distribution: both tails together are 5%.
CRITICAL = 1.959964


@dataclass(frozen=True)
class Measurement:
    """What one run's advice was.

    Attributes
    ----------
    experiment : str
        As given.
    num_clients, seed : int
        Of the run.
    num_test : int
        Test samples.
    candidates : list of Candidate
        What there was to choose from.
    choice, best : Candidate
        What the advice names, and the most accurate method.
    low, high : float
        The best one's interval.
    steps : list of str
        The methods named for growing budgets.
    cheapest_within : bool
        Whether the choice is the cheapest that the score test does not tell from the best.
    """

    experiment: str
    num_clients: int
    seed: int
    num_test: int
    candidates: list[Candidate]
    choice: Candidate
    best: Candidate
    low: float
    high: float
    steps: list[str]
    cheapest_within: bool


def candidates_of(data: Features, parts: Sequence[np.ndarray], config: AppConfig) -> list[Candidate]:
    """Return accuracy and bytes as sent of every method of a run.

    Parameters
    ----------
    data : Features
        All samples.
    parts : sequence of ndarray
        The training samples of every client.
    config : AppConfig
        Methods, their options, seed and the wire's dtype.
    """

    def answer(msg: Message, client: int) -> Message:
        index = torch.from_numpy(parts[client])
        statistics = read_statistics_request(msg).statistics(data.train[index], data.train_labels[index])
        return statistics_reply(msg, statistics, backbone_fingerprint=FINGERPRINT)

    strategy = StatisticsStrategy(
        data.num_classes,
        tuple(config.measured(lambda: data.test, lambda line: None).configured_methods.values()),
        feature_dim=data.train.shape[1],
        seed=config.run.seed,
        wire_dtype=config.federation.wire_dtype,
        backbone_fingerprint=FINGERPRINT,
    )
    ask(strategy, answer, len(parts))
    return [
        Candidate(name, data.accuracy(head, feature_map), strategy.wire_bytes(name))
        for name, (feature_map, head) in solved_heads(strategy).items()
    ]


def is_cheapest_within(advice: Advice, candidates: Sequence[Candidate]) -> bool:
    """Check an advice without Wilson's formula: by the score test of each accuracy as the best one's true accuracy."""
    top = max(one.accuracy for one in candidates)
    within = [
        one
        for one in candidates
        if (top - one.accuracy) ** 2 <= CRITICAL**2 * one.accuracy * (1 - one.accuracy) / advice.num_test
    ]
    least = min(one.wire_bytes for one in within)
    most = max(one.accuracy for one in within if one.wire_bytes == least)
    return (advice.choice.wire_bytes, advice.choice.accuracy) == (least, most)


def measure(experiment: str, num_clients: Sequence[int], seeds: int) -> Iterator[Measurement]:
    """Yield the advice of every run of one experiment.

    Parameters
    ----------
    experiment : str
        A path of a TOML file, or ``key=value`` pairs apart by blanks.
    num_clients : sequence of int
        Numbers of clients; none for the experiment's own.
    seeds : int
        How many, from 0.

    Raises
    ------
    ValueError
        If there are fewer than two methods, or the settings or data do not suit.
    """
    data = None
    for clients in num_clients or [config_of(experiment).partition.num_clients]:
        for seed in range(seeds):
            config = config_of(experiment, num_clients=clients, seed=seed)
            data = data or features_of(config)
            parts = partitions(config.data, config.partition, seed)
            candidates = candidates_of(data, parts, config)
            advice = advise(candidates, len(data.test))
            if advice is None:
                raise ValueError(f"{experiment}: there must be at least two methods, got {', '.join(config.methods)}")
            yield Measurement(
                experiment or "default",
                len(parts),
                seed,
                advice.num_test,
                candidates,
                advice.choice,
                advice.best,
                advice.steps[-1].low,
                advice.steps[-1].high,
                [step.choice.method for step in advice.steps],
                is_cheapest_within(advice, candidates),
            )


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    options = experiments_of(__doc__, clients=(), seeds=1).parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    found = run(
        options,
        Measurement,
        lambda experiment: measure(experiment, options.clients, options.seeds),
        lambda lines: f"{sum(one.cheapest_within for one in lines)} of {len(lines)} choices are the cheapest within",
    )
    if not all(one.cheapest_within for one in found):
        sys.exit("an advice was not the cheapest within the interval")


if __name__ == "__main__":
    main()
