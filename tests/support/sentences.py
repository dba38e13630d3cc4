"""Sentences about films, and the folders that they come in."""

from pathlib import Path

import numpy as np

GOOD = ("a great movie", "she was good", "this film is great", "it was a good film")
BAD = ("a terrible movie", "it was bad", "this is not good", "the film was terrible and bad")


def sentences(number: int, *, seed: int = 0) -> list[str]:
    """Draw texts of very different lengths."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice((*GOOD, *BAD), draw.integers(0, 12))) for _ in range(number)]


def text_folder(root: Path, *, each: int = 12) -> Path:
    """Write a folder of good and one of bad reviews, a file each."""
    draw = np.random.default_rng(1)
    for name, phrases in (("good", GOOD), ("bad", BAD)):
        (root / name).mkdir(parents=True)
        for number in range(each):
            (root / name / f"{number:02d}.txt").write_text(", ".join(draw.choice(phrases, draw.integers(1, 9))))
    return root
