"""A model's folder from the hub: from its cache on this machine, or downloaded, and in clear words why not."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedstats_app.backbones.architecture import UNKNOWN_LICENCE
from fedstats_app.backbones.weights import WeightsError, downloading, require_reachable

_DESCRIPTION = ("config.json", "preprocessor_config.json", "README.md")
# By their usual names first: some repositories hold the weights twice, or those of another network too.
_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
    ("*.safetensors",),
    ("pytorch_model*.bin", "pytorch_model.bin.index.json"),
    ("*.pth",),
)


def hub_folder(
    name: str,
    *,
    wanted: Sequence[str] = _DESCRIPTION,
    weights: Sequence[Sequence[str]] = _WEIGHTS,
    required: Sequence[str] = ("config.json",),
    ignored: Sequence[str] = ("*/*",),
) -> Path:
    """Find the folder of ``ORG/NAME`` or ``ORG/NAME@REVISION`` in the hub's cache, or download it.

    Parameters
    ----------
    name : str
        Of the model.
    wanted, ignored : sequence of str
        Patterns of the files beside the weights, and of what is not downloaded in any case.
    weights : sequence of sequences of str
        Patterns of weights' files; the first that anything matches are taken.
    required : sequence of str
        Files one of which must be there; any will do if there are none.

    Raises
    ------
    WeightsError
        If it is not here and cannot be downloaded: the message says what to put where.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    repository, _, revision = name.partition("@")
    at = f" --revision {revision}" if revision else ""
    advice = (
        f"download {repository} where the hub can be reached (hf download {repository}{at} --local-dir FOLDER), copy "
        "its folder here and name that folder in backbone-weights, or put it into the hub's cache "
        f"{constants.HF_HUB_CACHE}"
    )
    snapshot = functools.partial(
        snapshot_download, repository, revision=revision or None, ignore_patterns=list(ignored)
    )

    def complete(folder: Path) -> bool:
        described = not required or any((folder / file).is_file() for file in required)
        return described and any(next(folder.rglob(pattern), None) for patterns in weights for pattern in patterns)

    for patterns in weights:
        # With the patterns: a cache that knows of more files of the model calls itself incomplete without them.
        with contextlib.suppress(OSError, ValueError):
            folder = Path(snapshot(allow_patterns=[*wanted, *patterns], local_files_only=True))
            if complete(folder):
                return folder
    with downloading(f"model {repository} is", advice):
        require_reachable(constants.ENDPOINT)
        try:
            for patterns in weights:
                folder = Path(snapshot(allow_patterns=[*wanted, *patterns]))
                if complete(folder):
                    return folder
        except GatedRepoError as error:
            page = f"https://huggingface.co/{repository}"
            raise OSError(f"its terms must be accepted at {page}, then sign in by `hf auth login`") from error
        except RepositoryNotFoundError as error:
            raise OSError("the hub has no such model, or it is private") from error
        raise OSError(f"it has none of {', '.join(required)}, or no weights")


def read_json(folder: Path, name: str, source: str, kind: type[dict[str, Any]] | type[list[Any]] = dict) -> Any:
    """Read a file of a model's folder, which holds one JSON object or list; a WeightsError says why it cannot."""
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{source}: {name} cannot be read: {error}") from error
    if not isinstance(content, kind):
        wanted = "object" if kind is dict else "list"
        raise WeightsError(f"{source}: {name} must be a JSON {wanted}, got {type(content).__name__}")
    return content


def licence_of_card(folder: Path, default: str = UNKNOWN_LICENCE) -> str:
    """Read the licence from the front matter of a model's ``README.md``; ``default`` if it names none.

    ``license_name`` is taken where ``license`` is ``other``.
    """
    try:
        text = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return default
    matter = re.match(r"\ufeff?---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    # `key: value`, or a list, whose first entry is taken.
    entry = re.compile(r"^(license|license_name):[ \t]*(?:\r?\n- *)?(.+?)\s*$", re.MULTILINE)
    values: dict[str, str] = {key: value.strip("\"'") for key, value in entry.findall(matter[1])} if matter else {}
    named = values.get("license", "other")
    return values.get("license_name", default) if named in ("other", "unknown") else named
