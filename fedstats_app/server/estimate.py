"""How long clients will take, guessed before anybody has answered: by the speed of the server's own machine."""

from __future__ import annotations

from collections.abc import Mapping

from fedstats_app.backbones.measurements import seconds_per_sample
from fedstats_app.server.run import Run

# Forward and backward pass through the backbone.
TRAINING_PASSES = 3
_TIMED_SECONDS = 0.1


def expected_seconds(run: Run, clients: Mapping[int, int], passes: float) -> float:
    """Return about how long clients will compute, 0 where that cannot be guessed: a text's length decides.

    In a simulation they share this machine, and their samples count one after another; elsewhere they work side by
    side, and the one with most samples counts, as if its machine were as fast as this one.

    Parameters
    ----------
    run : Run
        With its backbone.
    clients : mapping
        From client to its number of samples.
    passes : float
        Forward passes that every sample takes.
    """
    if run.backbone.kind != "image" or not clients or not passes:
        return 0.0
    number = sum(clients.values()) if run.federation.simulated else max(clients.values())
    seconds = seconds_per_sample(run.backbone, run.backbone.transform.blank(), _TIMED_SECONDS)
    return seconds * passes * number
