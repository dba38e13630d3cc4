"""Sentences about films, and the folders that they come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from fedstats_app.backbones.text.tiny import tiny_config, tiny_tokenizer

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
            text = ", ".join(draw.choice(phrases, draw.integers(1, 9)))
            (root / name / f"{number:02d}.txt").write_text(text)
    return root


def tiny_bert(folder: Path, *, head: bool = False) -> Path:
    """Write a language model of two layers with its tokenizer, with a language head if asked for."""
    transformers = pytest.importorskip("transformers", reason="needs the extra `text`")
    tokenizer = tiny_tokenizer()
    kind = transformers.BertForMaskedLM if head else transformers.BertModel
    kind(tiny_config(len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def parquet_texts(folder: Path, **columns: list[Any]) -> Path:
    """Write 20 texts of two classes, for training and the same for testing, with more columns if given."""
    folder.mkdir(exist_ok=True)
    texts = {"text": 10 * ["a good film", "a bad film"], "label": 10 * [1, 0]}
    table = datasets.Dataset.from_dict({**texts, **columns})
    for split in ("train", "test"):
        table.to_parquet(str(folder / f"{split}-0.parquet"))
    return folder
