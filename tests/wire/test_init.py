"""The names of the package are imported when they are used, and each is what it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedstats_app.wire as wire
from fedstats_app.wire import _NEED_TORCH


def test_every_public_name_is_there_after_all_modules_were_imported() -> None:
    # Modules become attributes of the package when they are imported: none may hide a public name.
    program = (
        "import importlib, pkgutil, types, fedstats_app.wire as wire\n"
        "for _, name, _ in pkgutil.iter_modules(wire.__path__, 'fedstats_app.wire.'): importlib.import_module(name)\n"
        "print([name for name in wire.__all__ if isinstance(getattr(wire, name), types.ModuleType)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_names_that_need_torch_are_public_and_others_are_refused() -> None:
    assert set(_NEED_TORCH) < set(wire.__all__)
    with pytest.raises(AttributeError, match="no attribute 'statistics_answer'"):
        wire.statistics_answer  # noqa: B018
