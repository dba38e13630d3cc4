"""The time of a forward pass."""

import numpy as np
import pytest

from fedstats_app.backbones import timing
from fedstats_app.backbones.registry import load_backbone


def test_time_is_that_of_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = load_backbone("random:tiny", input_size=16, device="cpu", batch_size=4)
    clock = iter(np.arange(0, 100, 0.3))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))
    # Read at 0.0 (start), 0.3 after one pass, 0.6 after two, which ends it, 0.9 for the total: two passes of four.
    assert timing.seconds_per_sample(backbone, backbone.transform.blank()) == pytest.approx(0.9 / 8)
