"""What a folder in the layout of sentence-transformers says beside the transformer in it.

Read here and not by that library: importing it takes seconds, and on a real node every message is a new process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstats_app.backbones.weights import WeightsError

# The library's names for ways of pooling, and the switches that older folders have in their place.
_POOLINGS = {"mean": "mean", "cls": "first", "max": "max", "lasttoken": "last"}
_SWITCHES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}


@dataclass(frozen=True)
class SentenceLayout:
    """What stands in the folder's files.

    Attributes
    ----------
    transformer : Path
        Folder of the transformer and its tokenizer.
    pooling : str
        One of `fedstats_app.backbones.text.encoders.POOLINGS`.
    normalise : bool
        Whether vectors are divided by their lengths.
    max_length : int or None
        Most tokens of a text, where a file says so.
    """

    transformer: Path
    pooling: str
    normalise: bool
    max_length: int | None


def read_layout(folder: Path) -> SentenceLayout:
    """Read ``modules.json`` and what it points to.

    Raises
    ------
    WeightsError
        If the file is missing, or asks for more than a transformer, one of the poolings and normalisation.
    """
    modules = _read(folder, "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise WeightsError(f"{folder.name}: modules.json must be a list of modules, got {type(modules).__name__}")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise WeightsError(
            f"{folder.name}: a sentence encoder must consist of Transformer, Pooling and maybe Normalize, got {kinds}"
        )
    transformer, pooling = (folder / str(module.get("path", "")) for module in modules[:2])
    settings = _read(transformer, "sentence_bert_config.json", default={})
    if settings.get("do_lower_case"):
        raise WeightsError(f"{folder.name}: do_lower_case must be false (the tokenizer lowers cases), got true")
    if _read(folder, "config_sentence_transformers.json", default={}).get("default_prompt_name"):
        raise WeightsError(f"{folder.name}: a default prompt before every text is not supported")
    return SentenceLayout(
        transformer, _pooling(_read(pooling, "config.json"), folder), len(kinds) == 3, settings.get("max_seq_length")
    )


def _pooling(settings: dict[str, Any], folder: Path) -> str:
    given = settings.get("pooling_mode") or [mode for switch, mode in _SWITCHES.items() if settings.get(switch)]
    modes = [given] if isinstance(given, str) else list(given)
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise WeightsError(f"{folder.name}: pooling must be one of {', '.join(_POOLINGS)}, got {modes}")
    return _POOLINGS[modes[0]]


def _read(folder: Path, name: str, *, default: Any = None) -> Any:
    path = folder / name
    if default is not None and not path.is_file():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error
