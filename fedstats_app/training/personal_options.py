"""Options of personalisation. No torch is imported here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from fedstats_app.base.option import Options, number, option, some_of, whole
from fedstats_app.methods import METHODS, PERSONAL_METHODS, method_type
from fedstats_app.training.training_options import LocalOptions

# Approaches to personal models, and the global heads, with which they are compared.
APPROACHES = ("global", "local-only", "one-shot", "closed-form")
# FedCGS's, after FedPAC.
BATCH_SIZE, MOMENTUM, WEIGHT_DECAY = 128, 0.5, 5e-4


@dataclass(frozen=True)
class PersonalOptions(Options):
    """Personal models: which approaches are compared, and how clients train in them."""

    table: ClassVar[str] = "personal"

    personalise: str = option(
        "none",
        some_of(APPROACHES, "none", "all"),
        "none | all | some of global, local-only, one-shot, closed-form",
        key="personalise",
    )
    epochs: int = option(20, whole(1, 100_000), "of local-only and one-shot")
    learning_rate: float = option(0.01, number(0.0, open_low=True), "of SGD")
    alignment_weight: float = option(1.0, number(0.0), "pulls features to class means (one-shot)")

    def conflicts(self, config: Any) -> Iterator[str]:
        """Refuse a run without a method that makes personal heads."""
        if self.approaches and not any(method_type(name).name in PERSONAL_METHODS for name in config.methods):
            allowed = " or ".join(name for name in METHODS if name in PERSONAL_METHODS)
            yield f"personalise: method must name {allowed}, got method {config.run.method!r}"

    @property
    def approaches(self) -> tuple[str, ...]:
        """The approaches in the order asked for."""
        named = {"none": (), "all": APPROACHES}
        return named.get(self.personalise, tuple(self.personalise.split(",")))

    def passes(self, approach: str) -> int:
        """Return the epochs in which a client trains its whole network in an approach."""
        return 0 if approach in ("global", "closed-form") else self.epochs

    def local(self, *, flip: bool) -> LocalOptions:
        """Return the options of clients."""
        return LocalOptions(
            epochs=self.epochs,
            batch_size=BATCH_SIZE,
            learning_rate=self.learning_rate,
            momentum=MOMENTUM,
            weight_decay=WEIGHT_DECAY,
            flip=flip,
        )
