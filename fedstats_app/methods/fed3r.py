"""Fed3R: federated recursive ridge regression.

Fani et al. 2024, "Accelerating heterogeneous federated learning with closed-form classifiers".

Clients send class sums, counts and their Gram matrix; the head is the ridge regression on one-hot labels of all data.
Deviations from the reference code: float64, lambda added once in the solve, and one triangle of the Gram matrix on
the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedstats_app.base.option import Options, flag, number, one_of, option
from fedstats_app.methods.method import Method, Need, class_balance

if TYPE_CHECKING:
    from fedstats_app.heads import LinearHead
    from fedstats_app.heads.noisy import NoisyStatistics
    from fedstats_app.statistics import FeatureStatistics


@dataclass(frozen=True)
class Fed3ROptions(Options):
    """As :func:`fedstats_app.heads.solve_ridge`."""

    table: ClassVar[str] = "fed3r"

    ridge_lambda: float | Literal["auto"] = option(
        "auto", number(0.0, word="auto"), "auto = largest evidence, or a number (paper: 0.01)"
    )
    between_class: bool = option(True, flag, "false leaves the between-class scatter out")
    normalize: bool = option(True, flag, "false keeps the rows' lengths (AFL, with ridge-lambda 0)")
    solver: Literal["cholesky", "pinv32"] = option(
        "cholesky", one_of("cholesky", "pinv32"), "pinv32 = float32 pseudo-inverse, as in the papers"
    )
    class_balance: bool = class_balance()


class Fed3RMethod(Method[Fed3ROptions]):
    """Ridge regression on one-hot labels."""

    name = "fed3r"
    display_name = "Fed3R"
    paper = "Fani et al. 2024"
    options_type = Fed3ROptions
    needs = frozenset({Need.GRAM})
    takes_noise = True
    takes_targets = frozenset({"labels", "numbers"})

    def solve(self, inputs: FeatureStatistics) -> LinearHead:
        """Return the ridge regression."""
        from fedstats_app.heads import solve_ridge
        from fedstats_app.heads.scatter import with_equal_classes

        options = self.options
        return solve_ridge(
            with_equal_classes(inputs) if options.class_balance else inputs,
            ridge_lambda=options.ridge_lambda,
            between_class=options.between_class,
            normalize=options.normalize,
            solver=options.solver,
        )

    def solve_targets(self, inputs: FeatureStatistics) -> LinearHead:
        """Return the ridge regression with an intercept, of labels scaled to log odds."""
        from fedstats_app.heads.targets import solve_target_head

        return solve_target_head(inputs, self.options.ridge_lambda)

    def uplink(self, M: int, K: int, C: int, d: int) -> int:
        """Count class sums and Gram matrices."""
        return M * d + K * d**2

    def solve_noisy(self, noisy: NoisyStatistics) -> LinearHead:
        """Return the ridge regression from sums with noise."""
        return noisy.ridge()
