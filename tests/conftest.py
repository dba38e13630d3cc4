"""Settings of all tests, and the golden federations."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from support.golden import FEDERATIONS, Federation

# Time limits of single examples say nothing on a shared machine. In CI the same examples are drawn every time.
settings.register_profile(
    "fedstats",
    max_examples=25,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fedstats")


@pytest.fixture(params=FEDERATIONS)
def federation(request: pytest.FixtureRequest) -> Federation:
    """Each golden federation in turn."""
    return Federation(request.param)
