"""Fine-tuning: backbone and head."""

from dataclasses import replace

from fedstats_app.trainers.gradient import by_gradient
from fedstats_app.trainers.trainer import Trainer

FULL = Trainer(
    name="full",
    display_name="fine-tuning",
    tunes="backbone and head",
    sent="trained weights of network and head in every round",
    request=lambda session: replace(session.request, tune="full"),
    run=by_gradient,
    passes=3,
)
