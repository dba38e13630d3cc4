"""Settings as TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_toml(settings: Mapping[str, Any]) -> str:
    """Write a flat TOML file: a line for each key, with a text, a number or a truth value.

    Parameters
    ----------
    settings : mapping
        From bare keys to values.

    Returns
    -------
    str
        From which `tomllib` reads the same.
    """
    # For strings, whole numbers and truth values JSON's spelling is TOML's too; for inf and nan Python's is.
    lines = (
        f"{key} = {value!r}" if isinstance(value, float) else f"{key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in settings.items()
    )
    return "".join(f"{line}\n" for line in lines)
