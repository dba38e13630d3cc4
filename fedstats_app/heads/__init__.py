"""Level 1: closed-form classifier heads as pure functions of merged statistics (torch only).

Regularisation happens here, once, on the merged statistics; solvers work in float64 and never form an inverse.

It may import statistics.
"""

from fedstats_app.heads.calibration import Calibration, CalibrationSums
from fedstats_app.heads.fedcof import solve_fedcof, solve_oracle
from fedstats_app.heads.gaussian import solve_gaussian
from fedstats_app.heads.linear_head import LinearHead, SolveReport
from fedstats_app.heads.ncm import solve_ncm
from fedstats_app.heads.ridge import solve_ridge
from fedstats_app.heads.scores import (
    ClientScores,
    ConfusionMatrix,
    HeadScores,
    MarginHistograms,
    filled_bins,
    margin_bins,
)

__all__ = [
    "Calibration",
    "CalibrationSums",
    "ClientScores",
    "ConfusionMatrix",
    "HeadScores",
    "LinearHead",
    "MarginHistograms",
    "SolveReport",
    "filled_bins",
    "margin_bins",
    "solve_fedcof",
    "solve_gaussian",
    "solve_ncm",
    "solve_oracle",
    "solve_ridge",
]
