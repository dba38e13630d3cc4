"""FedCOF's oracle: what it would be with the clients' true covariances (Goswami et al. 2025, eq. 24).

An ablation. Clients send rows and their Gram matrix, from whose sum the paper's formula follows; the
paper's clients send a covariance for each of their classes, and its bytes count that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedstats_app.methods.method import Method, Needs, Uplink
from fedstats_app.settings.option import Options, number, one_of, option

if TYPE_CHECKING:
    from fedstats_app.heads import LinearHead
    from fedstats_app.statistics import ClientStatistics


@dataclass(frozen=True)
class OracleOptions(Options):
    """As :func:`fedstats_app.heads.solve_oracle`."""

    prefix: ClassVar[str] = "oracle-"

    covariance: Literal["full", "diagonal", "spherical"] = option(
        "full",
        one_of("full", "diagonal", "spherical"),
        "full | diagonal | spherical: what is left of the covariances of clients' classes",
        rare=True,
    )
    shrinkage: float | Literal["auto"] = option(
        "auto", number(0.0, word="auto"), "gamma, absolute: auto, or a number (paper: as fedcof-shrinkage)"
    )


def _solve(statistics: ClientStatistics, options: OracleOptions) -> LinearHead:
    from fedstats_app.heads import solve_oracle

    return solve_oracle(statistics, covariance=options.covariance, shrinkage=options.shrinkage)


def _numbers(options: OracleOptions) -> Uplink:
    """Return the paper's formula: for each row its mean, and its covariance, the diagonal or the mean of that."""
    if options.covariance == "full":
        return lambda M, K, C, d: M * (d + d**2)
    return (lambda M, K, C, d: 2 * M * d) if options.covariance == "diagonal" else (lambda M, K, C, d: M * (d + 1))


FEDCOF_ORACLE = Method(
    name="oracle",
    display_name="FedCOF-Oracle",
    paper="Goswami et al. 2025, eq. 24",
    options=OracleOptions,
    needs=Needs(gram=True),
    solve=_solve,
    uplink=_numbers(OracleOptions()),
    uplink_with=_numbers,
    keeps_rows=True,
)
