"""Method: all that the app knows of a closed-form method; ConfiguredMethod: a method with its options."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedstats_app.base.option import Options
from fedstats_app.base.threads import one_thread

if TYPE_CHECKING:
    from fedstats_app.heads import LinearHead
    from fedstats_app.heads.noisy import NoisyStatistics
    from fedstats_app.statistics import FeatureStatistics, LowRankStatistics, StatisticsSpec
    from fedstats_app.statistics.collected import StatisticsSum

# Up to so many a solve is made on one thread of torch; with more, all of them are worth the last bits.
FEW_FEATURES = 2048
# From M, K, C, d to numbers.
Uplink = Callable[[int, int, int, int], int]
OptionsType = TypeVar("OptionsType", bound=Options)


@dataclass(frozen=True)
class Needs:
    """What a method may ever ask clients for, beside one mean per class and their number of samples.

    Attributes
    ----------
    gram : bool
        A Gram matrix.
    several_means : bool
        Several means per class.
    scatter : bool
        A factor of the scatter about these means.
    """

    gram: bool = False
    several_means: bool = False
    scatter: bool = False

    def missing(self, spec: StatisticsSpec) -> tuple[str, ...]:
        """List what a specification asks for beyond this, in words."""
        asked = {
            "a Gram matrix": spec.gram and not self.gram,
            "a factor of the scatter": spec.sends_scatter and not self.scatter,
            "several means per class": spec.means_per_class > 1 and not self.several_means,
        }
        return tuple(what for what, is_missing in asked.items() if is_missing)


@dataclass(frozen=True)
class Personal:
    """How a method makes a head for one client from the federation's statistics mixed with the client's own.

    Its statistics have a Gram matrix, or are completed to have one, and its solver takes sums.

    Attributes
    ----------
    regulariser : str
        The option that is fixed as it was for the federation's head, whose ``report.parameters`` name it too; "" where
        nothing is chosen from the statistics.
    per_sample : bool
        Whether that is in proportion to the number of samples.
    priority : int
        Models that are trained start from the head of the highest that was solved.
    """

    regulariser: str = ""
    per_sample: bool = False
    priority: int = 0


@dataclass(frozen=True)
class Method(Generic[OptionsType]):
    """One method: what it asks for, how it is solved, what is said of it. All else is derived from this.

    Attributes
    ----------
    name : str
        In the configuration, in results and as a file's name.
    display_name, paper : str
        As the paper spells it, and the paper in short.
    solve : callable
        From merged statistics and options to the head.
    uplink : callable or None
        From M, K, C, d to the numbers that all clients send by the paper's formula. M: pairs of a client and a class
        that it has, or all means where the method may ask for several; K: clients; C: classes; d: feature dimension.
        None where there is no such formula: what went over the wire is told then.
    needs : Needs
        What no options make the method exceed.
    options : type
        With the run-config keys; by default there are none.
    specify : callable
        From options to what clients are asked for; by default the Gram matrix where it is needed.
    adds : bool
        Whether secure sums serve a method that keeps rows, of one mean per class: ``solve`` takes
        :class:`fedstats_app.heads.scatter.SummedRows` too.
    keeps_rows : bool
        Every client's rows are kept, and ``solve`` takes them, :class:`ClassMeanRows`, instead of their sum,
        :class:`FeatureStatistics`.
    complete : callable or None
        From rows that are kept and the factors' sums to the :class:`FeatureStatistics` that ``solve`` takes then.
    personal : Personal, callable or None
        None where clients get no head of their own by this method; a callable where it depends on the options.
    noisy : callable or None
        From sums with noise to the head on features of length 1; None where there is none.
    """

    name: str
    display_name: str
    paper: str
    solve: Callable[[Any, OptionsType], LinearHead]
    uplink: Uplink | None
    needs: Needs = field(default_factory=Needs)
    options: type[OptionsType] = Options  # type: ignore[assignment]  # an empty group
    specify: Callable[[OptionsType], StatisticsSpec] | None = None
    keeps_rows: bool = False
    adds: bool = False
    complete: Callable[[LowRankStatistics], FeatureStatistics] | None = None
    personal: Personal | Callable[[OptionsType], Personal] | None = None
    noisy: Callable[[NoisyStatistics], LinearHead] | None = None

    def personal_with(self, options: OptionsType) -> Personal | None:
        """Return how a head for one client is made with these options; None where there are no such heads."""
        return self.personal(options) if callable(self.personal) else self.personal

    def configured(
        self,
        options: OptionsType | None = None,
        means_per_class: int = 1,
        samples_per_mean: int = 2,
        *,
        variant: str = "",
    ) -> ConfiguredMethod:
        """Return the method with options, by default the run-config's."""
        options = self.options() if options is None else options
        return ConfiguredMethod(self, options, means_per_class, samples_per_mean, variant)


@dataclass(frozen=True)
class ConfiguredMethod:
    """A method with its options: what a strategy serves.

    Attributes
    ----------
    method : Method
        The record.
    options : Options
        Of the record's type.
    means_per_class, samples_per_mean : int
        Of a client, for a method that takes several means; see :class:`fedstats_app.statistics.StatisticsSpec`.
    variant : str
        Takes the place of the method's name, where it is served with several options.
    """

    method: Method[Any]
    options: Options
    means_per_class: int = 1
    samples_per_mean: int = 2
    variant: str = ""

    @property
    def name(self) -> str:
        """The variant's, else the method's."""
        return self.variant or self.method.name

    @property
    def specification(self) -> StatisticsSpec:
        """Statistics that clients are asked for."""
        from fedstats_app.statistics import StatisticsSpec

        specify, several = self.method.specify, self.method.needs.several_means and self.means_per_class > 1
        spec = StatisticsSpec(gram=self.method.needs.gram) if specify is None else specify(self.options)
        if not several:
            return spec
        return replace(spec, means_per_class=self.means_per_class, samples_per_mean=self.samples_per_mean)

    @property
    def keeps_rows(self) -> bool:
        """Whether every client's rows are kept."""
        return self.method.keeps_rows

    @property
    def uplink(self) -> Uplink | None:
        """The paper's formula of what clients send, with these options; None where there is none."""
        return self.method.uplink

    @property
    def cannot_add(self) -> str:
        """Why the method cannot be solved from a sum over clients, and what can; "" where it can."""
        if self.method.needs.scatter:
            return f"{self.name} sends factors, which stack and do not add up: take fed3r, which has the same scatter"
        if self.keeps_rows and not (self.method.adds and self.means_per_class == 1):
            several = "several means per class" if self.method.adds else "every client's means"
            return f"{self.name} needs {several}, which do not add up: take fed3r, fedcgs or fedncm"
        return ""

    @property
    def cannot_be_noisy(self) -> str:
        """Why the method cannot be solved from sums with noise, and what can; "" where it can."""
        if self.method.noisy is None:
            return f"{self.name} is not served with noise: take fed3r, fedcgs or fedncm"
        if self.options != self.method.options():
            return f"{self.name}: the noise says how it is solved, so {self.method.name} has no options with it"
        return ""

    def solve_noisy(self, noisy: NoisyStatistics) -> LinearHead:
        """Return the head on features of length 1.

        Raises
        ------
        ValueError
            If there is none of sums with noise.
        """
        if self.method.noisy is None:
            raise ValueError(self.cannot_be_noisy)
        return self.method.noisy(noisy)

    def solve(self, statistics: StatisticsSum, rows: object = None) -> LinearHead:
        """Return the head, from statistics that cover the specification, and what secure sums give in place of rows.

        With few features it has the same bits whatever the number of torch's threads.
        """
        with one_thread() if statistics.feature_dim <= FEW_FEATURES else contextlib.nullcontext():
            if not self.keeps_rows or self.method.complete is not None:
                return self.method.solve(self.sums(statistics), self.options)
            return self.method.solve(statistics.rows() if rows is None else rows, self.options)

    def sums(self, statistics: StatisticsSum) -> FeatureStatistics:
        """Return the sums of statistics that cover the specification, completed where the method does that."""
        complete = self.method.complete
        if complete is None:
            return statistics.summed(gram=self.method.needs.gram)
        return complete(statistics.low_rank())

    def fixed(self, parameters: Mapping[str, float]) -> ConfiguredMethod:
        """Fix the regulariser to that of a solved head's ``report.parameters``, for :meth:`solve_mixture`."""
        name = self._personal.regulariser
        return replace(self, options=replace(self.options, **{name: parameters[name]})) if name else self

    def scaled(self, samples_ratio: float) -> ConfiguredMethod:
        """Return the method for another number of samples, given over that of the federation.

        Raises
        ------
        ValueError
            If the method has no personal heads, or its regulariser is not fixed.
        """
        name = self._personal.regulariser
        value = getattr(self.options, name) if name else 0.0
        if value == "auto":
            raise ValueError(f"{name} must be a number for a personal head, got auto")
        ratio = samples_ratio if self._personal.per_sample else 1.0
        return replace(self, options=replace(self.options, **{name: value * ratio})) if name else self

    def solve_mixture(self, statistics: FeatureStatistics, samples_ratio: float) -> LinearHead:
        """Return a client's own head, as :meth:`scaled` for its number of samples."""
        return self.method.solve(statistics, self.scaled(samples_ratio).options)

    @property
    def _personal(self) -> Personal:
        personal = self.method.personal_with(self.options)
        if personal is None:
            raise ValueError(f"{self.name} has no personal heads")
        return personal
