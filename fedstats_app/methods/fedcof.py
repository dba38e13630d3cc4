"""FedCOF: covariances for free from client means.

Goswami et al. 2025, "Covariances for free: exploiting mean distributions for training-free federated learning".

Clients send the same as for FedNCM; the server keeps every row and estimates class covariances from the spread of the
means. Deviations from the reference code: the divisor is the number of means of the class, one symmetric product
replaces C matrices, and an absent class adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedstats_app.base.option import Options, flag_or, number, option
from fedstats_app.methods.method import Method, Need

if TYPE_CHECKING:
    from fedstats_app.heads import LinearHead
    from fedstats_app.heads.scatter import SummedRows
    from fedstats_app.statistics import ClassMeanRows
    from fedstats_app.statistics.collected import StatisticsSum


@dataclass(frozen=True)
class FedCOFOptions(Options):
    """As :func:`fedstats_app.heads.solve_fedcof`."""

    table: ClassVar[str] = "fedcof"

    shrinkage: float | Literal["auto"] = option(
        "auto", number(0.0, word="auto", infinite=True), "gamma: auto, or a number (paper: 1, MobileNetV2 0.1)"
    )
    between_class: bool | Literal["only"] = option(
        False, flag_or("only"), 'true = also between-class scatter | "only" = this alone'
    )

    def problems(self) -> list[str]:
        """Refuse what does not go together."""
        if self.between_class == "only" and self.shrinkage == "auto":
            return ["fedcof.between-class: only needs a number for fedcof.shrinkage, got auto"]
        return []


class FedCOFMethod(Method[FedCOFOptions]):
    """Class covariances from the spread of the clients' class means."""

    name = "fedcof"
    display_name = "FedCOF"
    paper = "Goswami et al. 2025"
    options_type = FedCOFOptions
    needs = frozenset({Need.SEVERAL_MEANS})
    keeps_rows = True
    sums_rows = True

    def inputs(self, statistics: StatisticsSum) -> ClassMeanRows:
        """Return all clients' rows."""
        return statistics.rows()

    def solve(self, inputs: ClassMeanRows | SummedRows) -> LinearHead:
        """Return the head of estimated covariances."""
        from fedstats_app.heads import solve_fedcof

        return solve_fedcof(inputs, shrinkage=self.options.shrinkage, between_class=self.options.between_class)

    def uplink(self, M: int, K: int, C: int, d: int) -> int:
        """Count class means."""
        return M * d
