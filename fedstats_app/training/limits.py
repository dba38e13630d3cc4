"""Bounds of one request to a node. No torch is imported here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedstats_app.training.training_options import LocalOptions

# A step multiplies the parameters by one less the learning rate times what pulls them to zero or to the start. Where
# that is 0 a client sends the gradient of its last batch, and where it is small that of its last few.
LARGEST_DECAY = 0.1
_ANY = 1_000_000_000
# Characters of the name that an owner gives a node.
MAX_CLIENT_NAME = 100


class RefusedByPolicy(Exception):
    """The owner of this node does not allow a request; the message names the value and the limit."""

    for_server = True


@dataclass(frozen=True)
class RequestLimits:
    """Bounds of single requests to a node with data of its own; every preset keeps to them.

    Attributes
    ----------
    min_batch_size : int
        Fewest samples of a step of training or a difference quotient.
    max_directions : int
        Of a round of FedMeZO.
    max_features : int
        Of a `feature-map`.
    max_classes : int
        Of a request; an evaluation counts in a matrix with as many rows and columns.
    max_run_megabytes : int
        Sent to one run.
    max_decay : float
        Of a step.
    """

    min_batch_size: int = 5
    max_local_epochs: int = 100
    max_local_steps: int = 100_000
    max_learning_rate: float = 1.0
    max_directions: int = 16
    max_features: int = 10_000
    max_classes: int = 10_000
    max_run_megabytes: int = 100_000
    max_decay: float = field(default=LARGEST_DECAY, repr=False)  # not in the questions of a ledger

    def check_training(self, options: LocalOptions, num_examples: int) -> None:
        """Refuse training of too many steps, on too few samples, or whose result depends on the last few alone."""
        self.check_batch("training.batch-size", options.batch_size, num_examples)
        steps = options.epochs * math.ceil(num_examples / options.batch_size)
        decay = options.learning_rate * (options.weight_decay + options.proximal_mu)
        _check_bound("local-epochs", options.epochs, self.max_local_epochs)
        _check_bound("steps of one call", steps, self.max_local_steps)
        _check_bound("learning-rate", options.learning_rate, self.max_learning_rate)
        _check_bound("learning-rate times weight-decay, with proximal-mu", decay, self.max_decay)

    def check_batch(self, key: str, batch_size: float, num_examples: int) -> None:
        """Refuse batches that are too small, or too few samples (0 if unknown), whose number is not named."""
        if batch_size < self.min_batch_size:
            raise RefusedByPolicy(f"{key}: must be at least {self.min_batch_size} (min-class-count), got {batch_size}")
        if 0 < num_examples < self.min_batch_size:
            raise RefusedByPolicy(
                f"this node has fewer than {self.min_batch_size} samples to train on (min-class-count)"
            )

    def check_size(self, num_classes: int, num_features: int) -> None:
        """Refuse too many classes, or too many features of a map."""
        _check_bound("classes", num_classes, self.max_classes)
        _check_bound("features of the feature-map", num_features, self.max_features)

    def check_mezo(self, num_directions: int, batch_size: int, num_examples: int = 0) -> None:
        """Refuse a round of FedMeZO with too many directions or too few samples; batch size 0 is all samples."""
        _check_bound("directions", num_directions, self.max_directions)
        self.check_batch("fedmezo.batch-size", batch_size or self.min_batch_size, num_examples)


# In a simulation all nodes are the same user's.
NO_LIMITS = RequestLimits(0, _ANY, _ANY, math.inf, _ANY, _ANY, _ANY, _ANY, math.inf)


def _check_bound(subject: str, value: float, bound: float) -> None:
    if value > bound:
        raise RefusedByPolicy(f"{subject}: must be at most {bound:g}, got {value:g}")
