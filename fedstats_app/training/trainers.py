"""Ways to train from a solved head: the only table of them. No torch is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from fedstats_app.training.training_options import FIXED_RATE


@dataclass(frozen=True)
class Trainer:
    """One way to train; all names that the configuration takes are derived from this.

    A client's work follows from the request alone.

    Attributes
    ----------
    name : str
        In the configuration, in results, after the start's as a file's name, and (by gradient) in the request.
    tunes : str
        Parameters that it tunes, for the documents.
    passes : int
        Forward passes of a sample, by the thesis's formula, in one local epoch or along one direction.
    rate : float
        Learning rate of SGD if none is given or found. A pre-trained network gets worse at 0.01 (conf/fine-tune.toml).
    by_gradient : bool
        True if clients run SGD and the option ``optimizer`` counts; false for FedMeZO.
    """

    name: str
    display_name: str
    tunes: str
    passes: int
    rate: float = FIXED_RATE
    by_gradient: bool = True

    def by(self, optimizer: str) -> str:
        """Name the optimiser if the trainer uses it, else the trainer itself."""
        return optimizer if self.by_gradient else self.name


# In the order of the documents.
PROBE = Trainer(
    name="probe",
    display_name="linear probing",
    tunes="the head, on features of the frozen backbone that are computed once",
    passes=1,
)

FULL = Trainer(
    name="full",
    display_name="fine-tuning",
    tunes="backbone and head",
    passes=3,
    rate=0.001,
)

FEATURES = Trainer(
    name="features",
    display_name="fine-tuning under a fixed head",
    tunes="the backbone under a fixed head",
    passes=3,
    rate=0.001,
)

FEDMEZO = Trainer(
    name="fedmezo",
    display_name="FedMeZO",
    tunes="[what `fedmezo.tune` names, without gradients](fedmezo.md)",
    passes=2,
    by_gradient=False,
)

TRAINERS: dict[str, Trainer] = {trainer.name: trainer for trainer in (PROBE, FULL, FEATURES, FEDMEZO)}
