"""Settings of all tests, and the golden federations."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.support.golden import FEDERATIONS, Federation

# Time limits of single examples say nothing on a shared machine. In CI the same examples are drawn every time.
settings.register_profile(
    "fedstats",
    max_examples=25,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fedstats")

# Matrices here are tiny: on a busy machine threads that wait for each other make them twenty times slower.
torch.set_num_threads(1)


@pytest.fixture(params=FEDERATIONS)
def federation(request: pytest.FixtureRequest) -> Federation:
    """Each golden federation in turn."""
    return Federation(request.param)
