"""Going on with a run that was interrupted: whether it is the same one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstats_app.storage.json_digest import read_json_file

# What may be another value in the run that goes on: none of these changes a number.
FREE_KEYS = frozenset(
    {"resume", "output-dir", "num-server-rounds", "wait-timeout", "settle-seconds", "reply-timeout", "window-megabytes"}
    | {"cache-dir", "feature-cache", "plots", "checkpoint-every", "checkpoint-seconds", "patience", "read-threads"}
)


class AnotherRunError(ValueError):
    """The folder is that of a run with other settings, data or backbone: which."""


def check_same_run(folder: Path, record: Mapping[str, object]) -> list[str]:
    """Check that a run goes on as it began, and return what may change the last bits.

    Parameters
    ----------
    folder : Path
        The run folder to go on in.
    record : mapping
        What config.json would say now (:func:`fedstats_app.report.record.run_record`).

    Returns
    -------
    list of str
        Differences of versions, threads and platform, in words: results may differ in rounding.

    Raises
    ------
    AnotherRunError
        If a setting that changes results is another one, or data or backbone are.
    ValueError
        If config.json is damaged.
    FileNotFoundError
        If it is no run folder.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"resume: {folder} has no config.json, so no run got far enough there to go on with")
    before = read_json_file(path)
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
        raise AnotherRunError("resume: this is not the run that was interrupted:\n  " + "\n  ".join(problems))
    return [
        f"{key}: was {before.get(key)!r}, is {now.get(key)!r}"
        for key in ("versions", "torch_threads", "platform")
        if before.get(key) != now.get(key)
    ]
