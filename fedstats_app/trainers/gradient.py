"""How records of trainers by gradients are run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstats_app.report.training_record import TrainingResult
    from fedstats_app.trainers.trainer import Session
    from fedstats_app.training.model import TunedModel


def by_gradient(session: Session) -> tuple[TrainingResult, TunedModel]:
    """Train by local SGD on the clients and one of Flower's strategies on the server."""
    from fedstats_app.trainers.gradient_training import GradientTraining

    return GradientTraining(session).run()
