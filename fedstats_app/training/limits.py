"""Bounds of one request to a node. No torch is imported here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedstats_app.training.training_options import LocalOptions

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
    max_directions : int
        Of a round of FedMeZO.
    max_features : int
        Of a `feature-map`.
    max_classes : int
        Of a request; an evaluation counts in a matrix with as many rows and columns.
    max_run_megabytes : int
        Sent to one run.
    """

    max_local_epochs: int = 100
    max_local_steps: int = 100_000
    max_directions: int = 16
    max_features: int = 10_000
    max_classes: int = 10_000
    max_run_megabytes: int = 100_000

    def check_training(self, options: LocalOptions, num_examples: int) -> None:
        """Refuse training of too many steps."""
        steps = options.epochs * math.ceil(num_examples / options.batch_size)
        _check_bound("local-epochs", options.epochs, self.max_local_epochs)
        _check_bound("steps of one call", steps, self.max_local_steps)

    def check_size(self, num_classes: int, num_features: int) -> None:
        """Refuse too many classes, or too many features of a map."""
        _check_bound("classes", num_classes, self.max_classes)
        _check_bound("features of the feature-map", num_features, self.max_features)

    def check_mezo(self, num_directions: int) -> None:
        """Refuse a round of FedMeZO with too many directions."""
        _check_bound("directions", num_directions, self.max_directions)


# In a simulation all nodes are the same user's.
NO_LIMITS = RequestLimits(_ANY, _ANY, _ANY, _ANY, _ANY, _ANY)


def _check_bound(subject: str, value: float, bound: float) -> None:
    if value > bound:
        raise RefusedByPolicy(f"{subject}: must be at most {bound:g}, got {value:g}")
