"""Options of personalisation. No torch is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstats_app.base.option import Options, number, option, some_of, whole
from fedstats_app.training.training_options import LocalOptions

# Ways to a model of one's own for every client, and what they are compared with.
APPROACHES = ("global", "local-only", "one-shot", "one-shot-sum", "fedavg-ft", "fedproto", "closed-form")


@dataclass(frozen=True)
class PersonalOptions(Options):
    """Personal models: which approaches are compared, and how clients train in them."""

    owner: ClassVar[str] = "personalise"

    personalise: str = option(
        "none",
        some_of(APPROACHES, "none", "all"),
        "none | all | some of global, local-only, one-shot, one-shot-sum, fedavg-ft, fedproto, closed-form",
    )
    personal_epochs: int = option(20, whole(1, 100_000), "of local-only, one-shot, fedavg-ft", at="@epochs")
    personal_rounds: int = option(20, whole(1, 100_000), "of one local epoch: fedavg-ft, fedproto", at="@rounds")
    personal_batch_size: int = option(128, whole(1, 1_000_000), "samples per step", at="@batch-size")
    personal_learning_rate: float = option(0.01, number(0.0, open_low=True), "of SGD", at="@learning-rate")
    personal_momentum: float = option(0.5, number(0.0, 1.0), "of SGD", at="@momentum")
    personal_weight_decay: float = option(5e-4, number(0.0), "of SGD", at="@weight-decay")
    alignment_weight: float = option(
        1.0, number(0.0), "pulls features to class means (one-shot, fedproto)", at="@alignment-weight"
    )

    @property
    def approaches(self) -> tuple[str, ...]:
        """The approaches in the order asked for."""
        named = {"none": (), "all": APPROACHES}
        return named.get(self.personalise, tuple(self.personalise.split(",")))

    def epochs(self, approach: str) -> int:
        """Return how often, in an approach, every client trains its whole network on all of its samples; 0 = never."""
        rounds, alone = self.personal_rounds, self.personal_epochs
        own = {"fedproto": rounds, "fedavg-ft": rounds + alone, "global": 0, "closed-form": 0}
        return own.get(approach, alone)

    def local(self, epochs: int, *, flip: bool) -> LocalOptions:
        """Return how clients train for so many epochs, the same in all approaches."""
        return LocalOptions(
            epochs=epochs,
            batch_size=self.personal_batch_size,
            learning_rate=self.personal_learning_rate,
            momentum=self.personal_momentum,
            weight_decay=self.personal_weight_decay,
            flip=flip,
        )
