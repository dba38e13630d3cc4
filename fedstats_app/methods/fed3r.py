"""Fed3R: federated recursive ridge regression.

Fani et al. 2024, "Accelerating heterogeneous federated learning with closed-form classifiers".

Clients send class sums, counts and their Gram matrix; the head is the ridge regression on one-hot labels of all data.
Deviations from the reference code: float64, lambda added once in the solve, and one triangle of the Gram matrix on
the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from fedstats_app.base.option import Options, flag, number, one_of, option, whole
from fedstats_app.methods.method import Method, Needs, Personal

if TYPE_CHECKING:
    from torch import Tensor

    from fedstats_app.heads import LinearHead
    from fedstats_app.statistics import FeatureStatistics, StatisticsSpec

# Features whose distances are measured; more would only cost memory.
_MEASURED_FEATURES = 500


@dataclass(frozen=True)
class Fed3ROptions(Options):
    """As :func:`fedstats_app.heads.solve_ridge`; random Fourier features, where there are some, give Fed3R-RF."""

    table: ClassVar[str] = "fed3r"

    ridge_lambda: float | Literal["auto"] = option(
        "auto", number(0.0, word="auto"), "auto = largest evidence, or a number (paper: 0.01)"
    )
    between_class: bool = option(True, flag, "false leaves the between-class scatter out")
    fit_bias: bool = option(False, flag, "true = a constant feature, as in the official code")
    normalize: bool = option(True, flag, "false keeps the rows' lengths (AFL, with ridge-lambda 0)")
    solver: Literal["cholesky", "pinv32"] = option(
        "cholesky", one_of("cholesky", "pinv32"), "pinv32 = float32 pseudo-inverse, as in the papers"
    )
    class_balance: bool = option(False, flag, "classes weigh alike (long tails)")
    random_features: int = option(0, whole(0, 100_000), "random Fourier features (Fed3R-RF); 0 = none")
    kernel_width: float | Literal["auto"] = option(
        "auto",
        number(0.0, open_low=True, word="auto"),
        "auto = median distance of the server's test features",
    )

    def problems(self) -> list[str]:
        """List what is wrong with the values together."""
        if self.fit_bias and not self.between_class:
            return ["fed3r.fit-bias: true needs fed3r.between-class true, got false"]
        return []


def _specify(options: Fed3ROptions, seed: int) -> StatisticsSpec:
    from fedstats_app.statistics import RandomFourierFeatures, StatisticsSpec

    if not options.random_features:
        return StatisticsSpec(gram=True)
    if options.kernel_width == "auto":
        raise ValueError("fed3r.kernel-width must be a number here, got auto")
    return StatisticsSpec(
        gram=True, feature_map=RandomFourierFeatures(options.random_features, options.kernel_width, seed)
    )


def _solve(statistics: FeatureStatistics, options: Fed3ROptions) -> LinearHead:
    from fedstats_app.heads import solve_ridge
    from fedstats_app.heads.scatter import with_equal_classes

    return solve_ridge(
        with_equal_classes(statistics) if options.class_balance else statistics,
        ridge_lambda=options.ridge_lambda,
        between_class=options.between_class,
        fit_bias=options.fit_bias,
        normalize=options.normalize,
        solver=options.solver,
    )


def _measure(options: Fed3ROptions, features: Callable[[], Tensor] | None, say: Callable[[str], None]) -> Fed3ROptions:
    """Set the kernel width, where it is needed and "auto", to the median distance between features."""
    if not options.random_features or options.kernel_width != "auto":
        return options
    if features is None:
        raise ValueError(
            "fed3r.kernel-width must be a number where the server has no test data to measure it on, got auto"
        )
    from fedstats_app.statistics.feature_maps import median_distance

    found = features()
    width = median_distance(found[:: max(1, len(found) // _MEASURED_FEATURES)])
    say(f"fed3r.kernel-width: median distance between the server's test features, {width:.4g}")
    return replace(options, kernel_width=width)


FED3R = Method(
    name="fed3r",
    display_name="Fed3R",
    paper="Fani et al. 2024",
    options=Fed3ROptions,
    needs=Needs(gram=True, feature_map=True),
    specify=_specify,
    solve=_solve,
    uplink=lambda M, K, C, d: M * d + K * d**2,
    personal=Personal("ridge_lambda", per_sample=True, priority=1),
    measure=_measure,
    noisy=lambda noisy: noisy.ridge(),
)
