"""MethodOptions: the options of all methods, each as its record defines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from fedstats_app.methods import METHODS
from fedstats_app.options import ConfigError, Options

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class MethodOptions(Options):
    """One group per method, in the order of the records."""

    groups: tuple[Options, ...] = field(default_factory=lambda: tuple(one.options() for one in METHODS.values()))

    @classmethod
    def keys(cls) -> dict[str, Field[Any]]:
        """Return the fields of all groups by key."""
        return {key: found for one in METHODS.values() for key, found in one.options.keys().items()}

    @classmethod
    def read(cls, values: Mapping[str, object]) -> Self:
        """Return all groups, as :meth:`Options.read` does one."""
        problems, groups = [], []
        for one in METHODS.values():
            try:
                groups.append(one.options.read(values))
            except ConfigError as error:
                problems.append(str(error))
        if problems:
            raise ConfigError("\n".join(problems))
        return cls(tuple(groups))

    def problems(self) -> list[str]:
        """Return what is wrong with the values of any group together."""
        return [problem for group in self.groups for problem in group.problems()]

    def to_config(self) -> dict[str, Any]:
        """Return the values of all groups by key."""
        return {key: value for group in self.groups for key, value in group.to_config().items()}

    def of(self, method: str) -> Options:
        """Return the options of one method."""
        return self.groups[list(METHODS).index(method)]

    def measured(
        self, methods: tuple[str, ...], features: Callable[[], Tensor] | None, say: Callable[[str], None]
    ) -> MethodOptions:
        """Return the options with whatever is to be measured for these methods; see :attr:`Method.measure`."""
        pairs = zip(METHODS.values(), self.groups, strict=True)
        return MethodOptions(
            tuple(one.measure(group, features, say) if one.name in methods else group for one, group in pairs)
        )
