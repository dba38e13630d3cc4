"""Location of run folders, and the newest of them."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_OUTPUT_DIR = "~/fedstats-runs"
LATEST = "latest"


def run_named(folder: str) -> str:
    """Return a run folder's path, of one that is not there that of the same name in ~/fedstats-runs.

    For `latest` it is that of the newest run in ~/fedstats-runs, for DIR/latest in DIR.

    Raises
    ------
    FileNotFoundError
        If there is no run in it.
    """
    path, usual = (Path(os.path.expanduser(name)) for name in (folder, DEFAULT_OUTPUT_DIR))  # also without any home
    if path.exists():
        return folder
    if path.name != LATEST:
        return str(usual / folder) if (usual / folder).is_dir() else folder
    root = usual if folder == LATEST else path.parent
    found = [status.parent for status in root.glob("*/status.json")]
    if not found:
        raise FileNotFoundError(f"{folder}: no run in {root}")
    return str(max(found, key=lambda run: run.name))
