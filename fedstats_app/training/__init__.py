"""Gradient work after a closed-form head: local training, evaluation, the papers' server optimiser (torch only).

Everything random is drawn from a key of integers (seed, client, round), and everything is float32: the same key, the
same number of torch threads, the same bits.
"""

from fedstats_app.training.alignment import ALIGNMENT_FORMS, alignment_loss, class_mean_sum, mean_square
from fedstats_app.training.evaluation import Evaluation, evaluate
from fedstats_app.training.local import Diverged, LocalReport, train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.options import LocalOptions
from fedstats_app.training.samples import Samples, SelectedSamples, TensorSamples, batch_order
from fedstats_app.training.server_adam import ServerAdam

__all__ = [
    "ALIGNMENT_FORMS",
    "Diverged",
    "Evaluation",
    "LocalOptions",
    "LocalReport",
    "Samples",
    "SelectedSamples",
    "ServerAdam",
    "TensorSamples",
    "TunedModel",
    "alignment_loss",
    "batch_order",
    "class_mean_sum",
    "evaluate",
    "mean_square",
    "train_locally",
]
