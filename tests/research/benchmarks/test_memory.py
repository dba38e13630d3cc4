from pathlib import Path

import pytest

from tests.support.commands import printed_by

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc"
)

# In a process of its own, as the benchmarks do: what a large one gives back meanwhile would hide the rise.
PROGRAM = """
import numpy as np
from research.benchmarks.memory import with_peak_memory

held = np.ones(20_000_000)  # 160 MB


def work():
    return float(np.ones(10_000_000).sum())  # 80 MB, gone when it returns


result, peak_mb = with_peak_memory(work)
assert result == 1e7 and held[0] == 1.0
print(peak_mb)
"""


def test_memory_given_back_before_the_end_counts_and_memory_from_before_does_not() -> None:
    assert 75 < float(printed_by(PROGRAM)) < 120
