"""Method: base class of the closed-form methods, with the options, the needs and the solution of each."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from fedstats_app.base.option import Options, flag, option
from fedstats_app.base.threads import one_thread

if TYPE_CHECKING:
    from fedstats_app.heads import LinearHead
    from fedstats_app.heads.linear_head import SolveReport
    from fedstats_app.heads.noisy import NoisyStatistics
    from fedstats_app.heads.scatter import SummedRows
    from fedstats_app.statistics import FeatureStatistics, StatisticsSpec
    from fedstats_app.statistics.collected import StatisticsSum

# Up to this dimension a solve is made on one thread of torch; above, all threads are worth the last bits.
FEW_FEATURES = 2048
OptionsType = TypeVar("OptionsType", bound=Options)


class Need(Enum):
    """Statistics beside one mean per class and their number of samples; the value is their name in sentences."""

    GRAM = "a Gram matrix"
    SCATTER = "a factor of the scatter"
    SEVERAL_MEANS = "several means per class"

    @classmethod
    def of(cls, spec: StatisticsSpec) -> list[Need]:
        """List what a specification asks for."""
        requested = {cls.GRAM: spec.gram, cls.SCATTER: spec.sends_scatter, cls.SEVERAL_MEANS: spec.means_per_class > 1}
        return [need for need, is_asked in requested.items() if is_asked]


def class_balance() -> Any:
    """Define the option of the methods that can weigh classes alike, which share its key."""
    return option(False, flag, "fed3r, fedcgs, fedroot: classes weigh alike (long tails)", key="class-balance")


@dataclass(frozen=True)
class Method(ABC, Generic[OptionsType]):
    """A closed-form method with its options. A subclass overrides :meth:`solve`, and what else differs.

    Class attributes
    ----------------
    name : str
        In the configuration, in results and as a file's name.
    display_name, paper : str
        As the paper spells it, and the paper in short.
    options_type : type
        With the keys of the run-config; by default there are none.
    needs : frozenset of Need
        No options make the method exceed them.
    keeps_rows : bool
        Every client's rows are kept, for :meth:`inputs`.
    sums_rows : bool
        Secure sums serve a method that keeps rows, of one mean per class: :meth:`solve` takes
        :class:`fedstats_app.heads.scatter.SummedRows` too.
    takes_noise : bool
        :meth:`solve_noisy` is overridden.
    takes_targets : frozenset of str
        "labels" if :meth:`solve_targets` takes several a sample, and "numbers".
    common_threshold : bool
        Labels share a threshold, by which all F1 together is largest, rather than each its own.

    Attributes
    ----------
    options : Options
        Of ``options_type``.
    means_per_class, samples_per_mean : int
        Of a client, for a method that takes several means; see :class:`fedstats_app.statistics.StatisticsSpec`.
    variant : str
        Replaces the name where the method is served with several options.
    """

    name: ClassVar[str]
    display_name: ClassVar[str]
    paper: ClassVar[str]
    options_type: ClassVar[type[Options]] = Options
    needs: ClassVar[frozenset[Need]] = frozenset()
    keeps_rows: ClassVar[bool] = False
    sums_rows: ClassVar[bool] = False
    takes_noise: ClassVar[bool] = False
    takes_targets: ClassVar[frozenset[str]] = frozenset()
    common_threshold: ClassVar[bool] = False

    options: OptionsType
    means_per_class: int = 1
    samples_per_mean: int = 2
    variant: str = ""

    @classmethod
    def default(cls) -> Self:
        """Return the method with the default options."""
        return cls(cls.options_type())  # type: ignore[arg-type]  # the subclass's type of options

    def regularised(self, report: SolveReport) -> Self:
        """Return the method with the finite regularisers that a solve chose, in place of "auto"."""
        chosen = {name: value for name, value in report.parameters.items() if math.isfinite(value)}
        known = {name: value for name, value in chosen.items() if hasattr(self.options, name)}
        return replace(self, options=replace(self.options, **known))

    @abstractmethod
    def solve(self, inputs: Any) -> LinearHead:
        """Return the head from :meth:`inputs`."""

    def inputs(self, statistics: StatisticsSum) -> Any:
        """Return what :meth:`solve` takes: by default the sums."""
        return statistics.shared() if Need.GRAM in self.needs else statistics.summed(gram=False)

    def specify(self) -> StatisticsSpec:
        """Return what clients are asked for, of one mean per class: by default a Gram matrix if the method needs it."""
        from fedstats_app.statistics import StatisticsSpec

        return StatisticsSpec(gram=Need.GRAM in self.needs)

    def uplink(self, M: int, K: int, C: int, d: int) -> int | None:  # the papers' letters
        """Return the numbers that all clients send by the paper's formula; None if it has none.

        M: pairs of a client and a class that it has, or all means if the method may ask for several; K: clients; C:
        classes; d: feature dimension.
        """
        return None

    def solve_targets(self, inputs: FeatureStatistics) -> LinearHead:
        """Return the head of several labels or numbers a sample; a subclass that has one overrides it."""
        raise ValueError(f"{self.full_name}: {self.cannot_take(inputs.targets.kind[0] if inputs.targets else '')}")

    @classmethod
    def cannot_take(cls, targets: str) -> str:
        """Say why the method has no head of such targets, "labels" or "numbers"; "" if it has one."""
        return "" if targets in cls.takes_targets else f"has no head of {targets}: take fed3r"

    def solve_noisy(self, noisy: NoisyStatistics) -> LinearHead:
        """Return the head on features of length 1 from sums with noise."""
        raise ValueError(f"{self.full_name} is not served with noise")

    @property
    def full_name(self) -> str:
        """The variant's name, else the method's."""
        return self.variant or self.name

    @property
    def specification(self) -> StatisticsSpec:
        """Statistics that clients are asked for."""
        if Need.SEVERAL_MEANS not in self.needs or self.means_per_class == 1:
            return self.specify()
        return replace(self.specify(), means_per_class=self.means_per_class, samples_per_mean=self.samples_per_mean)

    def head(self, statistics: StatisticsSum, rows: SummedRows | None = None) -> LinearHead:
        """Return the head from statistics that cover the specification, or from rows that secure sums have summed.

        With few features it has the same bits whatever the number of torch's threads.
        """
        with one_thread() if statistics.feature_dim <= FEW_FEATURES else contextlib.nullcontext():
            if statistics.has_targets:
                return self.solve_targets(self.inputs(statistics))
            return self.solve(rows if self.keeps_rows and rows is not None else self.inputs(statistics))
