"""FedCOF: covariances for free from client means; and its oracle, an ablation.

Goswami et al. 2025, "Covariances for free: exploiting mean distributions for training-free federated learning".

Clients send the same as for FedNCM; the server keeps every row and estimates class covariances from the spread of the
means. Deviations from the reference code: the divisor is the number of means of the class, one symmetric product
replaces C matrices, and an absent class adds nothing.

The oracle (eq. 24) has the clients' true covariances. Clients send rows and their Gram matrix, from whose sum the
paper's formula follows; the paper's clients send a covariance for each of their classes, and its bytes count that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedstats_app.base.option import Options, flag_or, number, one_of, option, whole
from fedstats_app.methods.method import Method, Needs, Uplink

if TYPE_CHECKING:
    from fedstats_app.heads import LinearHead
    from fedstats_app.heads.scatter import SummedRows
    from fedstats_app.statistics import ClassMeanRows, ClientStatistics, StatisticsSpec


@dataclass(frozen=True)
class FedCOFOptions(Options):
    """As :func:`fedstats_app.heads.solve_fedcof`; means of a client per class, noise on their counts."""

    prefix: ClassVar[str] = "fedcof-"
    owner: ClassVar[str] = "fedcof-count-noise"

    shrinkage: float | Literal["auto"] = option(
        "auto", number(0.0, word="auto", infinite=True), "gamma: auto, or a number (paper: 1, MobileNetV2 0.1)"
    )
    between_class: bool | Literal["only"] = option(
        False, flag_or("only"), 'true = also between-class scatter | "only" = this alone'
    )
    means_per_class: int = option(1, whole(1, 10_000), "disjoint means per class and client")
    samples_per_mean: int = option(2, whole(2, 1_000_000), "fewest samples of each", rare=True)
    count_noise: Literal["none", "uniform", "gaussian", "laplace"] = option(
        "none",
        one_of("none", "uniform", "gaussian", "laplace"),
        "uniform | gaussian | laplace, drawn by the server (not privacy)",
    )
    count_noise_epsilon: float = option(0.5, number(0.0, 0.999, open_low=True), "smaller: more noise", at="@epsilon")
    count_noise_seed: int = option(0, whole(0, 2**31 - 1), "of that draw", at="@seed")

    def problems(self) -> list[str]:
        """Refuse what does not go together."""
        if self.between_class == "only" and self.shrinkage == "auto":
            return ["fedcof-between-class: only needs a number for fedcof-shrinkage, got auto"]
        return []


def _specify(options: FedCOFOptions, seed: int) -> StatisticsSpec:
    from fedstats_app.statistics import StatisticsSpec

    # Of one mean per class it says nothing, and is not to keep methods apart.
    samples = options.samples_per_mean if options.means_per_class > 1 else 2
    return StatisticsSpec(means_per_class=options.means_per_class, samples_per_mean=samples)


def _adds(options: FedCOFOptions) -> bool:
    """Return whether the spread of one mean a client and class, as it is, is what is needed."""
    return options.means_per_class == 1 and options.count_noise == "none"


def _solve(rows: ClassMeanRows | SummedRows, options: FedCOFOptions) -> LinearHead:
    import torch

    from fedstats_app.heads import solve_fedcof
    from fedstats_app.heads.fedcof import draw_noise, with_noise
    from fedstats_app.heads.scatter import SummedRows

    if options.count_noise != "none" and not isinstance(rows, SummedRows):
        generator = torch.Generator().manual_seed(options.count_noise_seed)
        noise = draw_noise(options.count_noise, options.count_noise_epsilon, rows.counts, generator)
        rows = with_noise(rows, noise)
    return solve_fedcof(rows, shrinkage=options.shrinkage, between_class=options.between_class)


FEDCOF = Method(
    name="fedcof",
    display_name="FedCOF",
    paper="Goswami et al. 2025",
    options=FedCOFOptions,
    needs=Needs(several_means=True),
    specify=_specify,
    solve=_solve,
    uplink=lambda M, K, C, d: M * d,
    keeps_rows=True,
    adds=_adds,
)


@dataclass(frozen=True)
class OracleOptions(Options):
    """As :func:`fedstats_app.heads.solve_oracle`."""

    prefix: ClassVar[str] = "oracle-"

    covariance: Literal["full", "diagonal", "spherical"] = option(
        "full", one_of("full", "diagonal", "spherical"), "full | diagonal | spherical, of clients' classes", rare=True
    )
    shrinkage: float | Literal["auto"] = option("auto", number(0.0, word="auto"), "gamma: auto, or a number")


def _solve_oracle(statistics: ClientStatistics, options: OracleOptions) -> LinearHead:
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
    solve=_solve_oracle,
    uplink=_numbers(OracleOptions()),
    uplink_with=_numbers,
    keeps_rows=True,
)
