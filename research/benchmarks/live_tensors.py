"""Bytes of the tensors that are alive while something runs: what an algorithm needs, whatever an allocator keeps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, adds up the memory of the tensors that operations take and make, as long as anything refers to it.

    Memory is counted once, however many tensors share it. What a kernel takes and gives back within one operation is
    not seen: resident memory has that.

    Parameters
    ----------
    known : iterable of Tensor
        Not to be counted: what is there before.

    Attributes
    ----------
    now, peak : int
        Bytes alive, and the most there were.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known = {_key(tensor) for tensor in known}
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count what it took and made."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs or {}, result)):
            if isinstance(leaf, Tensor) and _key(leaf) not in self._known | self._seen:
                self._add(leaf)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = _key(tensor), storage.nbytes()
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, key, size)  # of the one object that stands for this memory

    def _remove(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def _key(tensor: Tensor) -> int:
    """Return the address of a tensor's storage, which all tensors that share memory have in common."""
    return int(tensor.untyped_storage()._cdata)
