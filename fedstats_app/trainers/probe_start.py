"""What a linear probe starts from: logits at the temperature that suits the clients' samples, and a learning rate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedstats_app.heads import LinearHead
from fedstats_app.training.options import ClientOptions, LocalOptions
from fedstats_app.training.probe_rate import probe_rate

if TYPE_CHECKING:
    from fedstats_app.grid.mezo_exchange import Asked
    from fedstats_app.trainers.trainer import Session


def found_options(session: Session) -> LocalOptions:
    """Return how clients train a probe; a learning rate that is not given is found from the first stage's statistics.

    Where these are of other features than the head takes, it is the fixed one.
    """
    given, step = session.options(ClientOptions), session.head.probe_step
    if given.learning_rate != "auto" or step is None:
        return given.with_rate()
    rate = probe_rate(
        step,
        made=session.made,
        momentum=given.momentum,
        temperature=session.tuning.logit_temperature,
    )
    session.progress.say(f"{session.name}: learning-rate {rate:.4g}, from the class means")
    return given.with_rate(rate)


def found_temperature(session: Session) -> tuple[float, Asked | None]:
    """Return the temperature at which the clients' loss on their training samples is least, and what asking cost.

    It is FedMeZO's question, with its bounds on what a node says; the nodes forget it at once. Nobody is asked where
    the head was made or a temperature is given.

    Raises
    ------
    TooFewClients
        If too few clients answer.
    """
    if session.made or session.tuning.temperature != "auto":
        return 1.0, None
    from fedstats_app.grid.mezo_exchange import together
    from fedstats_app.strategies.fedmezo import FedMeZO
    from fedstats_app.training.zeroth_order.model import build_model, make_replica
    from fedstats_app.training.zeroth_order.setup import MezoSetup

    head, backbone = session.head.head, session.backbone
    setup = MezoSetup(replace(session.request, tune="probe", options=LocalOptions()))
    start = {"head.weight": head.weight.float(), "head.bias": torch.nan_to_num(head.bias.float(), neginf=0.0)}
    replica = make_replica(setup, build_model(setup, start, backbone.module, backbone.feature_dim, backbone.device))
    strategy = FedMeZO(
        setup, start, session.clients, replica=replica, min_clients=session.min_clients, training=session.number
    )
    temperature, asked = strategy.measure_temperature(session.grid)
    session.progress.say(
        f"{session.name}: the head's logits are divided by {temperature:.4g}, where the clients' loss is least"
    )
    return temperature, together([asked, strategy.synchronise(session.grid)])


def divided(head: LinearHead, temperature: float) -> LinearHead:
    """Return a head whose logits are divided by a temperature, to the bit the same at 1."""
    return replace(head, weight=head.weight / temperature, bias=head.bias / temperature)
