"""Options of the closed-form methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedstats_app.options import Options, flag, number, one_of, option, whole


@dataclass(frozen=True)
class MethodKeys(Options):
    """How heads are solved; "auto" chooses from the statistics alone."""

    ridge_lambda: float | Literal["auto"] = option("auto", number(0.0, word="auto"))
    fed3r_between_class: bool = option(True, flag)
    fed3r_bias: bool = option(False, flag)
    fed3r_solver: Literal["cholesky", "pinv32"] = option("cholesky", one_of("cholesky", "pinv32"))
    fed3r_random_features: int = option(0, whole(0, 100_000))
    fed3r_kernel_width: float | Literal["auto"] = option("auto", number(0.0, open_low=True, word="auto"))
    fedcof_shrinkage: float | Literal["auto"] = option("auto", number(0.0, word="auto", infinite=True))
    fedcof_between_class: bool = option(False, flag)
    fedcof_means_per_class: int = option(1, whole(1, 10_000))
    fedcgs_covariance: Literal["total", "within"] = option("total", one_of("total", "within"))
    fedcgs_shrinkage: float = option(0.01, number(0.0))
    fedcgs_random_features: int = option(0, whole(0, 100_000))
    fedcgs_activation: str = option("relu", one_of("relu", "tanh", "identity"))

    def problems(self) -> list[str]:
        """Refuse what excludes each other."""
        if self.fed3r_bias and not self.fed3r_between_class:
            return ["fed3r-bias: true needs fed3r-between-class true, got false"]
        return []
