"""Fine-tuning of the features, under a head that stays as it is."""

from dataclasses import replace

from fedstats_app.trainers.gradient import by_gradient
from fedstats_app.trainers.trainer import Trainer

FEATURES = Trainer(
    name="features",
    display_name="fine-tuning under a fixed head",
    tunes="the backbone under a fixed head",
    sent="trained weights of the network in every round",
    request=lambda session: replace(session.request, tune="features"),
    run=by_gradient,
    passes=3,
)
