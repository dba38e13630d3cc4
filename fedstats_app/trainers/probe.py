"""Linear probing: the head alone."""

from dataclasses import replace

from fedstats_app.trainers.gradient import by_gradient
from fedstats_app.trainers.trainer import Trainer

PROBE = Trainer(
    name="probe",
    display_name="linear probing",
    tunes="the head, on features of the frozen backbone that are computed once",
    sent="trained weights of the head in every round",
    request=lambda session: replace(session.request, tune="probe"),
    run=by_gradient,
    passes=1,
)
