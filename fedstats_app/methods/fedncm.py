"""FedNCM: class means in one round.

Legate et al. 2023, "Guiding the last layer in federated learning with pre-trained models".

Clients send class sums and counts; the head is the row-normalised class means, exact for any split. Deviation from
the reference code: no random bias is kept, and an absent class gives a zero row instead of NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedstats_app.methods.method import Method
from fedstats_app.settings.option import Options, one_of, option

if TYPE_CHECKING:
    from fedstats_app.heads import LinearHead
    from fedstats_app.statistics import ClassMeanRows, FeatureStatistics


@dataclass(frozen=True)
class FedNCMOptions(Options):
    """Whether a class is represented by its mean, or by the geometric median of the clients' means."""

    prefix: ClassVar[str] = "fedncm-"

    center: Literal["mean", "median"] = option(
        "mean",
        one_of("mean", "median"),
        "median = the geometric median of the clients' means: robust to single clients",
    )


def _solve(statistics: FeatureStatistics | ClassMeanRows, options: FedNCMOptions) -> LinearHead:
    from fedstats_app.heads import solve_ncm
    from fedstats_app.heads.ncm import robust_rows
    from fedstats_app.statistics import ClassMeanRows

    summed = robust_rows(statistics).summed() if isinstance(statistics, ClassMeanRows) else statistics
    return solve_ncm(summed)


FEDNCM = Method(
    name="fedncm",
    display_name="FedNCM",
    paper="Legate et al. 2023",
    options=FedNCMOptions,
    solve=_solve,
    keeps_rows=lambda options: options.center == "median",
    uplink=lambda M, K, C, d: M * d,
)
