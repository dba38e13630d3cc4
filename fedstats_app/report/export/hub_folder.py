"""One head of a run as a folder that can be pushed to the Hugging Face hub as it is, and loaded again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstats_app.base.files import read_json_file, to_json, write_atomically
from fedstats_app.data.paths import without_folders
from fedstats_app.report.head_file import FILE_KEY, head_to_bytes, read_head
from fedstats_app.report.model_card import CARD_NAME, model_card
from fedstats_app.report.run_record import RunRecord

PREPROCESSING = "preprocessor_config.json"
# Entries of results.json on the card of one head; the others are about other heads or single sites.
_OF_THE_RUN = ("evaluated_on", "num_clients_asked", "num_clients_merged", "num_test_examples", "num_unreadable")
_IN_A_RUN = "/path/to/the/run/folder"


def write_hub_folder(run_folder: Path, method: str, folder: Path, *, licence: str, onnx: bool) -> list[Path]:
    """Write a head, its card and its preprocessing, and its backbone where training changed that, into a new folder.

    The files contain no paths of this machine and nothing about single sites.

    Parameters
    ----------
    run_folder : Path
        With the head and results.json.
    method : str
        The head's name.
    folder : Path
        Is made; it must be empty or not be there.
    licence : str
        Of the head, as the hub names it; "" says that the backbone's and the data's are to be looked at.
    onnx : bool
        True if the card should mention an ONNX file `METHOD.onnx` beside it.

    Raises
    ------
    FileNotFoundError, ValueError
        If the folder has something in it, or head or results are missing or damaged.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} must be an empty folder, or not be there")
    source = run_folder / "heads" / f"{method}.safetensors"
    head, metadata = read_head(source)
    shown = {key: without_folders(value) for key, value in metadata.items()}
    results = read_json_file(run_folder / "results.json")
    preprocessing = {
        "backbone": shown["backbone"],
        "backbone_fingerprint": shown["backbone-fingerprint"],
        "class_names": json.loads(shown["class-names"]),
        "transform": json.loads(shown.get("transform", "{}")),
    }
    files = {
        folder / "heads" / source.name: head_to_bytes(head, shown),
        folder / PREPROCESSING: to_json(preprocessing).encode(),
        folder / CARD_NAME: _card(method, shown, results, licence, onnx=onnx).encode(),
    }
    if tuned := metadata.get(FILE_KEY):
        files[folder / "heads" / Path(tuned).name] = (source.with_name(Path(tuned).name)).read_bytes()
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return list(files)


def _card(method: str, metadata: Mapping[str, str], results: Mapping[str, Any], licence: str, *, onnx: bool) -> str:
    of_head = {
        part: {method: results[part][method]} for part in ("methods", "training") if method in results.get(part, {})
    }
    shown = {key: results[key] for key in _OF_THE_RUN if key in results} | of_head
    card = model_card(RunRecord(method, {}, results=shown, heads={method: metadata}))
    # What kind of licence "other" is, the hub wants to have a name for.
    lines = [f"license: {licence}"] if licence else ["license: other", "license_name: of-backbone-and-data"]
    card = card.replace("---\n", "\n".join(["---", *lines, ""]), 1).replace(_IN_A_RUN, "/path/of/this/folder")
    if onnx:
        card += (
            f"\n## ONNX\n\n`{method}.onnx` is backbone and head in one file, which predicts without torch; its header "
            "says what to feed it.\n"
        )
    return card
