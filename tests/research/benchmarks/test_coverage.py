"""Sets of classes on made-up samples are covered as promised, in every way to bounds."""

import torch

from research.benchmarks.coverage import Trial, table, trials
from research.benchmarks.features import Features


def test_kept_and_left_out_samples_promise_what_holds() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(3000) % 4
    made = torch.nn.functional.one_hot(labels, 8) + 0.8 * torch.randn(3000, 8, generator=draw)
    features = Features(made[:2000], labels[:2000], made[2000:], labels[2000:], 4)
    found = {
        (method, way): (accuracy, covered, sizes) for method, way, accuracy, covered, sizes in trials(features, 0, 5)
    }
    assert len(found) == 7
    for (_, way), (accuracy, covered, sizes) in found.items():
        assert accuracy < 0.79  # else the likeliest class alone would cover as much
        if way != "floor":
            assert all(abs(share - promise) < 0.04 for share, promise in zip(covered, (0.8, 0.9, 0.95), strict=True))
        assert sizes[0] < sizes[1] < sizes[2] or sizes[2] != sizes[2]
    line = Trial(
        "made up",
        "Fed3R",
        "kept",
        0.7,
        {"0.8": 0.8, "0.9": 0.9, "0.95": float("nan")},
        dict.fromkeys(("0.8", "0.9", "0.95"), 1.5),
    )
    assert "| made | Fed3R | kept | 70.0 | 80.0, 1.50 | 90.0, 1.50 | - |" in table([line])
