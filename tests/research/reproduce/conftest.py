"""Stand-in data for every table, and runs in this process."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from fedstats_app.backbones.text.tiny import tiny_config, tiny_tokenizer

DOMAINS = ("photo", "art_painting", "cartoon", "sketch", "Product", "Art", "Clipart", "Real World")
CLASSES = [f"class {letter}" for letter in "abcdefghij"]


def _png(label: int, draw: np.random.Generator) -> bytes:
    colour = np.random.default_rng(label).integers(0, 256, 3)
    pixels = np.clip(colour + draw.integers(-60, 60, (16, 16, 3)), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of parquet files with the columns that any preset asks for: 10 classes, 320 and 40 images."""
    folder = tmp_path_factory.mktemp("stand-in")
    draw = np.random.default_rng(0)
    for split, number in (("train", 32), ("test", 4)):
        labels = np.repeat(np.arange(len(CLASSES)), number)
        images = [{"bytes": _png(int(label), draw), "path": None} for label in labels]
        owners = {"domain": np.resize(DOMAINS, len(labels)), "user_id": np.arange(len(labels)) % 5}
        table = datasets.Dataset.from_dict({"image": images, "label": labels, **owners})
        table = table.cast_column("image", datasets.Image())
        table = table.cast_column("label", datasets.ClassLabel(names=CLASSES))
        table.to_parquet(str(folder / f"{split}-0.parquet"))
    return folder


@pytest.fixture(scope="session")
def small(stand_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Run-config keys that make every preset's runs small, on the stand-in data."""
    return {
        "dataset": f"parquet:{stand_in}",
        "label-column": "label",
        "folder-levels": "auto",
        "backbone": "random:tiny",
        "input-size": 16,
        "num-clients": 4,
        "min-clients": 1,
        "num-server-rounds": 1,
        "local-epochs": 1,
        "simulation.epochs": 1,
        "simulation.rounds": 1,
        "plots": False,
        "cache-dir": str(tmp_path_factory.mktemp("cache")),
        "settle-seconds": 0.1,
        "wait-timeout": 5.0,
    }


@pytest.fixture(scope="session")
def small_texts(small: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The same for texts: a language model of two layers under a prompt, and 20 texts of two classes."""
    transformers = pytest.importorskip("transformers", reason="needs the extra `text`")
    model, texts = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("texts")
    tokenizer = tiny_tokenizer()
    transformers.BertForMaskedLM(tiny_config(len(tokenizer))).save_pretrained(model)
    tokenizer.save_pretrained(model)
    columns = {"text": 10 * ["a good film", "a bad film"], "premise": 20 * ["a film"], "hypothesis": 20 * ["a movie"]}
    table = datasets.Dataset.from_dict({**columns, "label": 10 * [1, 0]})
    for split in ("train", "test"):
        table.to_parquet(str(texts / f"{split}-0.parquet"))
    images = ("label-column", "input-size", "folder-levels")
    return {
        **{key: value for key, value in small.items() if key not in images},
        "dataset": f"parquet:{texts}",
        "backbone": f"transformers:{model}",
        "label-words": "bad,good",
    }


@pytest.fixture(scope="session")
def prompted_texts(small_texts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same for prompts among the tokens of a text, in place of a table's images."""
    given = {"input-size": 64, "label-column": "label", "partition.flips": "none"}
    return {**{key: value for key, value in small_texts.items() if key != "label-words"}, **given}
