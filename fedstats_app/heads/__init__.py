"""Level 1: closed-form classifier heads as pure functions of merged statistics (torch only).

Regularisation happens here, once, on the merged statistics; solvers work in float64 and never form an inverse.

It may import statistics.
"""

from fedstats_app.heads.calibration import Calibration as Calibration
from fedstats_app.heads.calibration import CalibrationSums as CalibrationSums
from fedstats_app.heads.fedcof import solve_fedcof as solve_fedcof
from fedstats_app.heads.gaussian import solve_gaussian as solve_gaussian
from fedstats_app.heads.linear_head import LinearHead as LinearHead
from fedstats_app.heads.linear_head import SolveReport as SolveReport
from fedstats_app.heads.ncm import solve_ncm as solve_ncm
from fedstats_app.heads.ridge import solve_ridge as solve_ridge
from fedstats_app.heads.scores import ClientScores as ClientScores
from fedstats_app.heads.scores import ConfusionMatrix as ConfusionMatrix
from fedstats_app.heads.scores import HeadScores as HeadScores
from fedstats_app.heads.scores import MarginHistograms as MarginHistograms
from fedstats_app.heads.scores import filled_bins as filled_bins
from fedstats_app.heads.scores import margin_bins as margin_bins
