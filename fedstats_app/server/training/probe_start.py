"""What a linear probe starts from: logits at the temperature that suits the clients' samples, and a learning rate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedstats_app.heads import LinearHead
from fedstats_app.training.probe_rate import probe_rate, typical_steps
from fedstats_app.training.training_options import ClientOptions, LocalOptions

if TYPE_CHECKING:
    from fedstats_app.grid.mezo_exchange import Asked
    from fedstats_app.server.training.session import Session


def found_options(session: Session) -> LocalOptions:
    """Return how clients train a probe; a learning rate that is not given is found from the first stage's statistics.

    Where these are of other features than the head takes, it is the fixed one.
    """
    given, step = session.options(ClientOptions), session.head.probe_step
    if given.learning_rate != "auto" or step is None:
        return given.with_rate()
    rate = probe_rate(
        step,
        num_steps=typical_steps(session.clients.values(), given.batch_size, given.epochs),
        made_classes=session.head.head.num_classes if session.made else 0,
        momentum=given.momentum,
        temperature=session.tuning.logit_temperature,
    )
    session.progress.say(f"{session.name}: learning-rate {rate:.4g}, from the class means and the clients' samples")
    return given.with_rate(rate)


def asked_losses(session: Session, head: LinearHead) -> tuple[list[float], Asked]:
    """Return the clients' mean loss on their training samples, by temperature, and what asking cost.

    It is FedMeZO's question, with its bounds on what a node says; the nodes forget it at once.

    Raises
    ------
    TooFewClients
        If too few clients answer.
    """
    from fedstats_app.fedmezo.setup import MezoSetup, build_model, make_replica
    from fedstats_app.grid.mezo_exchange import together
    from fedstats_app.strategies.fedmezo import FedMeZO

    backbone = session.backbone
    setup = MezoSetup(replace(session.request, tune="probe", options=LocalOptions()))
    start = {"head.weight": head.weight.float(), "head.bias": torch.nan_to_num(head.bias.float(), neginf=0.0)}
    replica = make_replica(setup, build_model(setup, start, backbone.module, backbone.feature_dim, backbone.device))
    strategy = FedMeZO(
        setup, start, session.clients, replica=replica, min_clients=session.min_clients, training=session.number
    )
    losses, asked = strategy.measure_losses(session.grid)
    return losses, together([asked, strategy.synchronise(session.grid)])


def divided(head: LinearHead, temperature: float) -> LinearHead:
    """Return a head whose logits are divided by a temperature, to the bit the same at 1."""
    return replace(head, weight=head.weight / temperature, bias=head.bias / temperature)
