"""What a linear probe starts from: logits at the temperature that suits the clients' samples, and a learning rate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedstats_app.heads import LinearHead
from fedstats_app.training.start import probe_rate, typical_steps
from fedstats_app.training.training_options import ClientOptions, LocalOptions

if TYPE_CHECKING:
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


def divided(head: LinearHead, temperature: float) -> LinearHead:
    """Return a head whose logits are divided by a temperature, to the bit the same at 1."""
    return replace(head, weight=head.weight / temperature, bias=head.bias / temperature)
