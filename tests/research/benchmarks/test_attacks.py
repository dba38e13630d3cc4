"""The table of attacks: what is refused or named, and that no honest client is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstats_app.settings.app_config import AppConfig
from fedstats_app.wire import Limits
from research.benchmarks.attacks import ATTACKS, HOSTILE, PROTECTIONS, run
from research.benchmarks.features import Features

NUM_CLIENTS, NUM_CLASSES, DIM = 20, 4, 12
# Of the attacks with at least a hundred times the samples of an honest client, or values that no features have.
REFUSED = {
    "class means times 1e3",
    "class means times 1e6",
    "1e7 a class, swapped",
    "10 a class, means times -1e4",
    "Gram plus 1e6 I",
}
NAMED_BY_TEST = {"energy hides the classes"}
NAMED = {"1,000 a class, swapped", "10,000 a class, swapped"}


def data() -> Features:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(800) % NUM_CLASSES
    centres = 4.0 * torch.eye(NUM_CLASSES, DIM)
    features = torch.randn(800, DIM, generator=generator) + centres[labels] + 0.5
    return Features(features[:400], labels[:400], features[400:], labels[400:], NUM_CLASSES)


@pytest.mark.parametrize("attack", ATTACKS)
def test_it_is_refused_named_or_harmless(attack: str) -> None:
    found = data()
    norm = float(found.train.norm(dim=1).max())
    parts = np.array_split(np.random.default_rng(0).permutation(400), NUM_CLIENTS)
    config = AppConfig.of(method="fedncm,fed3r")
    limits = Limits(4.0 * norm, config.federation.max_client_samples)

    accuracy, outcome, *named = run(found, parts, config, ATTACKS[attack], limits)

    assert outcome.client == HOSTILE
    assert (outcome.outcome == "rejected") == (attack in REFUSED), outcome.reason
    by_clients, by_test = (attack in names for names in (NAMED, NAMED | NAMED_BY_TEST))
    assert named == [(HOSTILE,) if yes else () for yes in (by_clients, by_test)]
    assert (min(accuracy.values()) < 0.5) == (attack in NAMED)


@pytest.mark.parametrize("methods", ["fed3r", "fedcgs", "fedroot"])
def test_energy_that_hides_the_classes_does_no_harm_to_a_ridge_by_evidence(methods: str) -> None:
    found = data()
    parts = np.array_split(np.random.default_rng(0).permutation(400), 5)
    limits = Limits(100.0 * float(found.train.norm(dim=1).max()))
    config = AppConfig.of(method=methods)

    clean, hostile = (run(found, parts, config, ATTACKS[name], limits) for name in ("none", "energy hides the classes"))

    assert hostile[0][methods] > clean[0][methods] - 0.01
    assert (clean[3], hostile[3]) == ((), ())


@pytest.mark.parametrize("protection", [name for name in PROTECTIONS if name != "none"])
def test_what_protects_holds_a_swap_down(protection: str) -> None:
    found = data()
    parts = np.array_split(np.random.default_rng(0).permutation(400), NUM_CLIENTS)
    config = AppConfig.from_run_config({**PROTECTIONS[protection], "method": "fedncm,fedcof"})

    scores = {
        name: run(found, parts, config, ATTACKS[name], Limits())[0] for name in ("none", "1,000 a class, swapped")
    }

    for method, clean in scores["none"].items():
        assert clean > 0.9 and scores["1,000 a class, swapped"][method] > clean - 0.05, method
