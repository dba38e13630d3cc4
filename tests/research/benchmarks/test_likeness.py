"""The measurement of samples of another kind, on a few samples."""

import torch

from research.benchmarks.features import Features
from research.benchmarks.likeness import Found, pictures, shares, table


def test_others_are_beyond_the_limit_and_the_same_are_not() -> None:
    draw = torch.Generator().manual_seed(0)
    made = torch.randn(900, 6, generator=draw)
    features = Features(made[:500], torch.arange(500) % 2, made[500:], torch.arange(400) % 2, 2)
    alike, others = shares(features, [made[:50] + 20.0])
    assert alike < 4.0 and others == 100.0
    assert "| signs | 0.5 | 100.0 | 100.0 | 95.0 |" in table([Found("dataset=parquet:/data/signs", 0.5, 100, 100, 95)])


def test_pictures_are_of_one_colour_or_of_noise() -> None:
    blank, noise = pictures()
    assert all(len(picture.getcolors()) == 1 for picture in blank)
    assert all(picture.getcolors(10_000) is None for picture in noise)
