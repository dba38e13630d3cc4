"""Going on with a run that was interrupted: what its folder says of the stage that is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstats_app.heads import LinearHead
from fedstats_app.results.head_file import read_head
from fedstats_app.statistics import FeatureMap, feature_map_from_dict

# What may be another value in the run that goes on: none of these changes a number.
FREE_KEYS = frozenset(
    {"resume", "output-dir", "num-server-rounds", "wait-timeout", "settle-seconds", "reply-timeout", "window-megabytes"}
    | {"cache-dir", "feature-cache", "plots", "checkpoint-every", "patience"}
)


@dataclass(frozen=True)
class SavedHead:
    """A head of a run folder, with what the run said of it."""

    head: LinearHead
    feature_map: FeatureMap
    accuracy: float | None
    wire_bytes: int


@dataclass(frozen=True)
class ClosedFormStage:
    """The first stage of a run, as its folder has it.

    Attributes
    ----------
    heads : dict
        From method to its head.
    clients : dict
        From every client that was merged to its number of samples.
    client_scores : dict
        From method to accuracy and mean loss in nats of its head on what all of these clients hold out. Without methods
        whose head does not know a class, since a model in training knows all; empty if a client did not answer.
    """

    heads: dict[str, SavedHead]
    clients: dict[int, int]
    client_scores: dict[str, tuple[float, float]]


def closed_form_stage(folder: Path) -> ClosedFormStage | None:
    """Return the first stage of a run, or None if the run did not get so far.

    Parameters
    ----------
    folder : Path
        A run folder.

    Raises
    ------
    ValueError, FileNotFoundError
        If its files do not belong together.
    """
    results = folder / "results.json"
    if not results.is_file():
        return None
    record: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    methods: dict[str, dict[str, Any]] = record["methods"]
    heads = {}
    for name, result in methods.items():
        head, metadata = read_head(folder / "heads" / f"{name}.safetensors")
        feature_map = feature_map_from_dict(json.loads(metadata["feature-map"]))
        heads[name] = SavedHead(head, feature_map, result["accuracy"], int(result["wire_bytes"]))
    lines = (folder / "clients.jsonl").read_text(encoding="utf-8").splitlines()
    outcomes = [json.loads(line) for line in lines if line]
    merged = [outcome for outcome in outcomes if outcome["outcome"] in ("merged", "known")]
    clients = {int(outcome["client"]): int(outcome["num_examples"]) for outcome in merged}
    return ClosedFormStage(heads, clients, _client_scores(record, heads))


def _client_scores(record: Mapping[str, Any], heads: Mapping[str, SavedHead]) -> dict[str, tuple[float, float]]:
    if record["evaluated_on"] != "clients" or record["evaluation_failures"]:
        return {}
    calibrations = {name: result["calibration"] for name, result in record["methods"].items()}
    return {
        name: (record["methods"][name]["accuracy"], calibration["nll_before"])
        for name, calibration in calibrations.items()
        if calibration is not None
        and calibration["num_examples"] == record["num_test_examples"]
        and bool(heads[name].head.present.all())
    }


def check_same_run(folder: Path, record: Mapping[str, object]) -> list[str]:
    """Check that a run goes on as it began, and return what may change the last bits.

    Parameters
    ----------
    folder : Path
        The run folder to go on in.
    record : mapping
        What config.json would say now (:func:`fedstats_app.results.record.run_record`).

    Returns
    -------
    list of str
        Differences of versions, threads and platform, in words: results may differ in rounding.

    Raises
    ------
    ValueError
        If a setting that changes results is another one, or data or backbone are.
    FileNotFoundError
        If it is no run folder.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"resume: {folder} has no config.json, so no run got far enough there to go on with")
    before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    now: dict[str, Any] = json.loads(json.dumps(record))
    settings = before["run_config"].keys() | now["run_config"].keys()
    problems = [
        f"{key}: was {before['run_config'].get(key)!r}, is {now['run_config'].get(key)!r}"
        for key in sorted(settings - FREE_KEYS)
        if before["run_config"].get(key) != now["run_config"].get(key)
    ]
    for key in ("data", "class_names", "num_clients"):
        if before[key] != now[key]:
            problems.append(f"{key}: was {before[key]!r:.200}, is {now[key]!r:.200}")
    if before["backbone"]["fingerprint"] != now["backbone"]["fingerprint"]:
        problems.append(
            f"backbone: was {before['backbone']['fingerprint'][:16]}, is {now['backbone']['fingerprint'][:16]}"
        )
    if problems:
        raise ValueError("resume: this is not the run that was interrupted:\n  " + "\n  ".join(problems))
    return [
        f"{key}: was {before.get(key)!r}, is {now.get(key)!r}"
        for key in ("versions", "torch_threads", "platform")
        if before.get(key) != now.get(key)
    ]
