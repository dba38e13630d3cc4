"""A disk that is full from some moment on: no new file can be made and no file grows; what is there can be changed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest


class FullDisk:
    """Makes every write of a new file, and every forced write, fail with ENOSPC while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        monkeypatch.setattr(os, "open", self._unless_full(os.open, lambda args: bool(args[1] & os.O_CREAT)))

    def _unless_full(self, real: Callable[..., Any], applies: Callable[[tuple[Any, ...]], bool]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self.full and applies(args):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[0]))
            return real(*args, **options)

        return call
