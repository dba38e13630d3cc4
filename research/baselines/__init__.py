"""Baselines of the closed-form methods: CCVR, FedPFT, local heads, an MLP head, adapters.

May import options, statistics, heads and training. scikit-learn is imported only where mixtures are fitted.
"""

from research.baselines.ccvr import ccvr_samples, pooled_gaussians
from research.baselines.drawing import drawn_samples, drawn_samples_of_all
from research.baselines.fits import class_gaussians, fitted_mixtures
from research.baselines.mixtures import ClassMixtures
from research.baselines.softmax_heads import SOFTMAX_OPTIONS, average_heads, ensemble_probabilities, softmax_head

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
