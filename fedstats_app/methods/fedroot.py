"""FedRoot: a square root of each client's scatter, of square-root rank. Ours, unpublished.

Clients send rows (class, count, class sum) as for FedCOF, and of the scatter within their classes the largest
directions with their singular values and the energy left out (a truncated singular value decomposition). The server
adds these, spreads the energy left out over the shape that the rows betray (the pooled covariance of FedCOF, shrunk
towards the identity), and adds the heads of Fed3R's ridge regression and FedCGS's Gaussian discriminant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from fedstats_app.base.option import Options, number, option
from fedstats_app.base.rank_rule import RankRule, rank_rule
from fedstats_app.methods.method import Method, Need, class_balance

if TYPE_CHECKING:
    from fedstats_app.heads import LinearHead
    from fedstats_app.statistics import FeatureStatistics, StatisticsSpec
    from fedstats_app.statistics.collected import StatisticsSum

# Of the directions on the wire: bytes are worth more as directions than as digits.
FACTOR_DTYPE = "int8"


@dataclass(frozen=True)
class FedRootOptions(Options):
    """As :func:`fedstats_app.heads.fedroot.solve_completed`, and what a client sends: ranks by :class:`RankRule`."""

    table: ClassVar[str] = "fedroot"

    rank: str = option(
        "sqrt(n)",
        rank_rule,
        'directions: a multiple ("0.5 sqrt(n)"), a share of the energy ("90%"), a number, full, or bytes ("200KB")',
    )
    ridge_lambda: float | Literal["auto"] = option("auto", number(0.0, word="auto"), "auto, or a number")
    class_balance: bool = class_balance()


class FedRootMethod(Method[FedRootOptions]):
    """Fed3R's and FedCGS's heads from statistics completed from rows and factors."""

    name = "fedroot"
    display_name = "FedRoot"
    paper = "unpublished, of this app"
    options_type = FedRootOptions
    needs = frozenset({Need.SEVERAL_MEANS, Need.SCATTER})
    keeps_rows = True
    takes_targets = frozenset({"labels", "numbers"})

    def specify(self) -> StatisticsSpec:
        """Ask for rows and a factor of the scatter."""
        from fedstats_app.statistics import ScatterSpec, StatisticsSpec

        return StatisticsSpec(scatter=ScatterSpec(RankRule.parse(self.options.rank), FACTOR_DTYPE))

    def inputs(self, statistics: StatisticsSum) -> FeatureStatistics:
        """Return the sums with a completed Gram matrix: the products of all rows take longest, and are made once."""
        from fedstats_app.heads.fedroot import complete

        def completed() -> FeatureStatistics:
            low_rank = statistics.low_rank()
            made = complete(low_rank.rows, low_rank.scatter, low_rank.left_out)
            return replace(made, targets=statistics.summed(gram=False).targets)

        return statistics.once("completed", completed)

    def solve(self, inputs: FeatureStatistics) -> LinearHead:
        """Return the head of completed statistics."""
        from fedstats_app.heads.fedroot import solve_completed
        from fedstats_app.heads.scatter import with_equal_classes

        options = self.options
        statistics = with_equal_classes(inputs) if options.class_balance else inputs
        return solve_completed(statistics, ridge_lambda=options.ridge_lambda)

    def solve_targets(self, inputs: FeatureStatistics) -> LinearHead:
        """Return Fed3R's head of completed statistics."""
        from fedstats_app.heads.targets import solve_target_head

        return solve_target_head(inputs, self.options.ridge_lambda)
