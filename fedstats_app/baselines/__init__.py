"""What the closed-form methods are compared with: CCVR, FedPFT, local heads, an MLP head, adapters.

May import options, statistics, heads and training. scikit-learn is imported only where mixtures are fitted.
"""

from fedstats_app.baselines.ccvr import ccvr_samples, pooled_gaussians
from fedstats_app.baselines.drawing import drawn_samples, drawn_samples_of_all
from fedstats_app.baselines.gaussian_fits import class_gaussians
from fedstats_app.baselines.local_heads import average_heads, ensemble_probabilities
from fedstats_app.baselines.mixture_fits import fitted_mixtures
from fedstats_app.baselines.mixtures import ClassMixtures
from fedstats_app.baselines.softmax_head import SOFTMAX_OPTIONS, softmax_head

__all__ = [
    "SOFTMAX_OPTIONS",
    "ClassMixtures",
    "average_heads",
    "ccvr_samples",
    "class_gaussians",
    "drawn_samples",
    "drawn_samples_of_all",
    "ensemble_probabilities",
    "fitted_mixtures",
    "pooled_gaussians",
    "softmax_head",
]
