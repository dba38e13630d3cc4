"""FedCGS: Gaussian discriminant from global statistics.

Guan et al. 2025, "Capture global feature statistics for one-shot federated learning".

Clients send class sums, counts and their Gram matrix; the head is linear discriminant analysis with a shared
covariance. Deviations from the reference code: solved rather than inverted, an absent class is masked rather than NaN,
and no separate sum of features is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedstats_app.base.option import Options, number, one_of, option
from fedstats_app.methods.method import Method, Need, class_balance

if TYPE_CHECKING:
    from fedstats_app.heads import LinearHead
    from fedstats_app.heads.noisy import NoisyStatistics
    from fedstats_app.statistics import FeatureStatistics


@dataclass(frozen=True)
class FedCGSOptions(Options):
    """As :func:`fedstats_app.heads.solve_gaussian`."""

    table: ClassVar[str] = "fedcgs"

    # Within classes by default, as the derivation asks for (research/decisions.md); total is the paper's.
    covariance: Literal["total", "within"] = option(
        "within", one_of("total", "within"), "within (linear discriminant analysis) | total (paper)"
    )
    shrinkage: float | Literal["auto"] = option(
        "auto", number(0.0, word="auto"), "auto, or a number times tr(Sigma)/d (paper: 0)"
    )
    class_balance: bool = class_balance()


class FedCGSMethod(Method[FedCGSOptions]):
    """Linear discriminant analysis."""

    name = "fedcgs"
    display_name = "FedCGS"
    paper = "Guan et al. 2025"
    options_type = FedCGSOptions
    needs = frozenset({Need.GRAM})
    takes_noise = True
    takes_targets = frozenset({"labels"})
    common_threshold = True

    def solve(self, inputs: FeatureStatistics) -> LinearHead:
        """Return the Gaussian discriminant."""
        from fedstats_app.heads import solve_gaussian
        from fedstats_app.heads.scatter import with_equal_classes

        statistics = with_equal_classes(inputs) if self.options.class_balance else inputs
        return solve_gaussian(statistics, covariance=self.options.covariance, shrinkage=self.options.shrinkage)

    def solve_targets(self, inputs: FeatureStatistics) -> LinearHead:
        """Return the log odds of each label by two Gaussians of one covariance."""
        from fedstats_app.heads.targets import solve_target_gaussian

        return solve_target_gaussian(inputs, within=self.options.covariance == "within")

    def uplink(self, M: int, K: int, C: int, d: int) -> int:
        """Count class sums of all classes, Gram matrices and class counts."""
        return K * (C * d + d**2 + C)

    def solve_noisy(self, noisy: NoisyStatistics) -> LinearHead:
        """Return the Gaussian discriminant from sums with noise."""
        return noisy.gaussian()
