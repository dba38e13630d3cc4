from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.memory import with_peak_memory

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc"
)


def test_memory_given_back_before_the_end_counts_and_memory_from_before_does_not() -> None:
    held = np.ones(20_000_000)  # 160 MB

    def work() -> float:
        return float(np.ones(10_000_000).sum())  # 80 MB, gone when it returns

    result, peak_mb = with_peak_memory(work)
    assert result == 1e7 and held[0] == 1.0
    assert 75 < peak_mb < 120
