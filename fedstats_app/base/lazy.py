"""Names of a package that are imported on first use, because of what their modules import."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package, for names that are in its modules, by name."""

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return get, lambda: sorted([*vars(sys.modules[package]), *homes])
