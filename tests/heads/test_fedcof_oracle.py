"""FedCOF with the clients' true covariances: the golden federations, eq. 24 written out, Fed3R's identity."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.heads import solve_oracle
from fedstats_app.heads.fedcof import Covariance
from fedstats_app.methods import RECORDS
from fedstats_app.methods.fedcof import OracleOptions
from fedstats_app.statistics import ClientStatistics, StatisticsSpec
from tests.support.compare import absolute_difference
from tests.support.draws import Sample, samples
from tests.support.golden import Federation
from tests.support.literal import oracle_gram, unit_rows

KINDS = ("random", "non-negative", "duplicates", "low rank")
SHAPES: dict[str, Covariance] = {"full": "full", "diag": "diagonal", "spherical": "spherical"}


@pytest.mark.parametrize("shape", SHAPES)
def test_golden_heads(federation: Federation, shape: str) -> None:
    statistics = ClientStatistics(federation.rows(), federation.statistics().gram)
    head = solve_oracle(statistics, covariance=SHAPES[shape], shrinkage=float(federation["gamma"]))
    assert absolute_difference(head.weight, federation[f"oracle_{shape}_W"]) <= 1e-10


def merged(sample: Sample) -> ClientStatistics:
    spec = StatisticsSpec(gram=True)
    return reduce(add, [spec.from_features(*part, sample.num_classes) for part in sample.parts])


@given(samples(kinds=KINDS), st.sampled_from(sorted(SHAPES)), st.sampled_from([0.5, 3.0]))
def test_it_is_the_formula_written_out(sample: Sample, shape: str, gamma: float) -> None:
    features, labels = (torch.cat([part[index] for part in sample.parts]).numpy() for index in (0, 1))
    features = features.astype(np.float64) / sample.scale  # in float32 the division would round, unlike the statistics
    clients = np.repeat(np.arange(len(sample.parts)), [len(part[1]) for part in sample.parts])
    if len(labels) <= len(np.unique(labels)):  # nothing but single samples: no ridge, and G may be singular
        return
    gram = oracle_gram(features, labels, clients, gamma, shape)  # type: ignore[arg-type]
    sums = np.zeros((sample.num_classes, features.shape[1]))
    np.add.at(sums, labels, features)
    head = solve_oracle(merged(sample), covariance=SHAPES[shape], shrinkage=gamma * sample.scale**2)
    assert absolute_difference(head.weight, unit_rows(np.linalg.solve(gram, sums.T).T)) <= 1e-6


def test_what_makes_no_sense_is_refused() -> None:
    rows = StatisticsSpec().from_features(torch.rand(6, 3), torch.arange(6) % 2, 2).rows
    statistics = ClientStatistics(rows, torch.eye(3, dtype=torch.float64))
    with pytest.raises(ValueError, match="needs statistics with a Gram matrix"):
        solve_oracle(ClientStatistics(rows))
    for wrong in (-1.0, float("inf"), float("nan"), "much"):
        with pytest.raises(ValueError, match="shrinkage must be a finite number"):
            solve_oracle(statistics, shrinkage=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("covariance", "numbers"), [("full", 30 * 72), ("diagonal", 30 * 16), ("spherical", 30 * 9)])
def test_bytes_are_those_of_what_the_papers_clients_send(covariance: Covariance, numbers: int) -> None:
    one = RECORDS["oracle"].configured(OracleOptions(covariance))
    assert one.uplink is not None
    assert one.uplink(30, 4, 9, 8) == numbers
