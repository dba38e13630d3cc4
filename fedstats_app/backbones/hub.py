"""A model's folder from the hub: from its cache on this machine, or downloaded, and in clear words why not."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from fedstats_app.backbones.weights import downloading, require_reachable

# Files of a model, pickles only where there is nothing better.
_DESCRIPTION = ("config.json", "preprocessor_config.json", "README.md")
_SAFE = ("*.safetensors", "*.safetensors.index.json")
_PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index.json", "*.pth")
_SUBFOLDERS = ("*/*",)


def hub_folder(
    name: str,
    *,
    wanted: Sequence[str] = _DESCRIPTION,
    weights: Sequence[Sequence[str]] = (_SAFE, _PICKLES),
    required: Sequence[str] = ("config.json",),
    ignored: Sequence[str] = _SUBFOLDERS,
) -> Path:
    """Find a model's folder in the hub's cache, or download it.

    Parameters
    ----------
    name : str
        ``ORG/NAME`` or ``ORG/NAME@REVISION``.
    wanted : sequence of str
        Patterns of the files beside the weights.
    weights : sequence of sequences of str
        Patterns of weights' files; the first that anything matches are taken.
    required : sequence of str
        Files one of which must be there; any will do if there are none.
    ignored : sequence of str
        Patterns of what is not downloaded in any case.

    Raises
    ------
    WeightsError
        If it is not here and cannot be downloaded: the message says what to put where.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    repository, _, revision = name.partition("@")
    snapshot = functools.partial(snapshot_download, repository, revision=revision or None)
    advice = (
        f"download {repository} where the hub can be reached ({_command(repository, revision)}), copy its folder here "
        f"and name that folder in backbone-weights, or put it into the hub's cache {constants.HF_HUB_CACHE}"
    )

    def complete(folder: Path) -> bool:
        described = not required or any((folder / one).is_file() for one in required)
        return described and any(next(folder.rglob(pattern), None) for patterns in weights for pattern in patterns)

    try:
        folder = Path(snapshot(local_files_only=True))
    except (OSError, ValueError):
        pass  # not in the cache
    else:
        if complete(folder):
            return folder
    with downloading(f"model {repository} is", advice):
        require_reachable(constants.ENDPOINT)
        try:
            for patterns in weights:
                allowed = [*wanted, *patterns]
                folder = Path(
                    snapshot(allow_patterns=allowed, ignore_patterns=list(ignored), endpoint=constants.ENDPOINT)
                )
                if complete(folder):
                    return folder
        except GatedRepoError as error:
            page = f"https://huggingface.co/{repository}"
            raise OSError(f"its terms must be accepted at {page}, then sign in by `hf auth login`") from error
        except RepositoryNotFoundError as error:
            raise OSError("the hub has no such model, or it is private") from error
        raise OSError(f"it has none of {', '.join(required)}, or no weights")


def _command(repository: str, revision: str) -> str:
    at = f" --revision {revision}" if revision else ""
    return f"hf download {repository}{at} --local-dir FOLDER"
