"""FedMeZO: tuning without gradients, by seeds and scalars."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedstats_app.fedmezo.options import FedMeZOOptions
from fedstats_app.report.communication import mezo_bytes
from fedstats_app.trainers.options import TuningOptions
from fedstats_app.trainers.trainer import Session, Trainer
from fedstats_app.training.options import LocalOptions

if TYPE_CHECKING:
    from fedstats_app.report.training_record import TrainingResult
    from fedstats_app.training.model import TunedModel
    from fedstats_app.training.request import TrainingRequest


def _request(session: Session) -> TrainingRequest:
    alone = session.options(FedMeZOOptions).tune == "head"
    return replace(session.request, tune="probe" if alone else "full", options=LocalOptions())


def _run(session: Session) -> tuple[TrainingResult, TunedModel]:
    from fedstats_app.trainers.mezo_training import MezoTraining

    return MezoTraining(session).run()


def _problems(tuning: TuningOptions) -> list[str]:
    problems = []
    if tuning.batch_norm != "frozen":
        problems.append(f"batch-norm: fedmezo needs frozen running statistics, got {tuning.batch_norm!r}")
    if tuning.keep == "best":
        problems.append(f"keep: fedmezo's nodes all have the last round's model, got {tuning.keep!r}")
    return problems


FEDMEZO = Trainer(
    name="fedmezo",
    display_name="FedMeZO",
    tunes="[what `fedmezo-tune` names, without gradients](fedmezo.md)",
    sent="a few numbers in every round (how its loss changes along directions drawn from a seed, the number of its "
    "samples, a digest of its model), and no weights",
    request=_request,
    run=_run,
    passes=2,
    formula_bytes=mezo_bytes,
    uses_optimizer=False,
    problems=_problems,
)
