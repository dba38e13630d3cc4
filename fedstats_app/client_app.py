"""The ClientApp: one short handler per kind of message. It does no mathematics.

In deployment every message is a new process. So what needs torch is imported in the handlers that need it: the question
which clients a node hosts is answered without.
"""

from __future__ import annotations

from fedstats_app.threads import PROCESS, num_threads  # first: it must come before torch

# isort: split

import logging
from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstats_app.client.budget import is_within_budget
from fedstats_app.client.ledger import ledger_of, note
from fedstats_app.data.clients import listed_classes, own_dataset
from fedstats_app.data.description import doubts
from fedstats_app.settings.of_message import REFUSED, node_of, refused_choice, run_of
from fedstats_app.wire import NodeInfo, RejectedRequest, guard, node_info_reply, per_client
from fedstats_app.wire.serving import clients_in

logger = logging.getLogger("fedstats_app")

# They score what is being trained, or was trained on this node.
EVALUATIONS_OF_TRAINING = ("evaluate.model", "evaluate.mezo", "evaluate.personal")


def owners_choices(msg: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Mod: load nothing that only a node's owner may name, and be the one client that such a node is."""
    node = node_of(context.node_config)
    if node.data_path and clients_in(msg) > 1:
        raise RejectedRequest("this node is one client, it cannot be asked for several")
    if reason := refused_choice(run_of(context.run_config), node):
        from fedstats_app.privacy import RefusedByPolicy

        logger.error("refused: %s", reason)
        raise RefusedByPolicy(REFUSED)
    return call_next(msg, context)


def owners_policy(msg: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Mod: train nothing on a node whose owner does not allow it, whatever the handler and whoever asks."""
    trains = msg.metadata.message_type.split(".")[0] == "train"
    if trains or msg.metadata.message_type in EVALUATIONS_OF_TRAINING:
        reason = node_of(context.node_config).refusal_to_train(evaluating=not trains)
        if reason:
            from fedstats_app.privacy import RefusedByPolicy

            raise RefusedByPolicy(reason)
    return call_next(msg, context)


def owners_ledger(msg: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Mod: answer nothing on data of a node's own that it could not write down, and no more than its owner allows."""
    ledger = ledger_of(run_of(context.run_config), node_of(context.node_config))
    if ledger is not None:
        note(ledger, msg, context)
    return call_next(msg, context)


def owners_budget(msg: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Mod: send a run no more from data of a node's own than its owner allows."""
    reply = call_next(msg, context)
    if is_within_budget(reply, run_of(context.run_config), node_of(context.node_config), context.run_id):
        return reply
    from fedstats_app.privacy import RefusedByPolicy

    raise RefusedByPolicy("this node has sent as much in this run as it sends in one (max-run-megabytes)")


app = ClientApp(mods=[guard, owners_choices, owners_policy, owners_ledger, owners_budget])


@app.query("clients")
def clients(msg: Message, context: Context) -> Message:
    """Say which clients this node hosts."""
    node = node_of(context.node_config)
    trains = not node.refusal_to_train()
    if node.data_path:
        config = run_of(context.run_config)
        dataset = own_dataset(node.data_path, node.data_options(config.data))
        # For this node's own log: nothing of it is in the reply.
        for line in (*dataset.notes, *doubts(dataset, None)):
            logger.warning("data: %s", line)
        names, ids = listed_classes(dataset, node.class_floor(config.federation.min_class_count))
        return node_info_reply(msg, NodeInfo(class_names=names, class_ids=ids, trains=trains, any_app=node.any_app))
    info = NodeInfo(
        node.partition_id,
        node.num_partitions,
        trains=trains,
        any_app=node.any_app,
        process=PROCESS,
        threads=num_threads(),
    )
    return node_info_reply(msg, info)


@app.query("statistics")
@per_client
def statistics(msg: Message, context: Context, client_id: int | None) -> Message:
    """Run the frozen backbone over the client's samples once and send their statistics."""
    from fedstats_app.client.statistics import statistics

    return statistics(msg, context, client_id)


@app.evaluate("heads")
@per_client
def evaluate(msg: Message, context: Context, client_id: int | None) -> Message:
    """Score heads on the samples that the client kept for evaluation."""
    from fedstats_app.client.evaluation import evaluate

    return evaluate(msg, context, client_id)


@app.train()
@per_client
def train(msg: Message, context: Context, client_id: int | None) -> Message:
    """Train the model of a round on the client's samples and send what changed."""
    from fedstats_app.client.training import train

    return train(msg, context, client_id)


@app.train("losses")
@per_client
def losses(msg: Message, context: Context, client_id: int | None) -> Message:
    """Say how large a head's loss is on the client's training samples, at each of some temperatures."""
    from fedstats_app.client.training import losses

    return losses(msg, context, client_id)


@app.evaluate("model")
@per_client
def evaluate_model(msg: Message, context: Context, client_id: int | None) -> Message:
    """Score a model that is being trained on the samples that the client kept for evaluation."""
    from fedstats_app.client.training import evaluate_model

    return evaluate_model(msg, context, client_id)


@app.train("mezo")
@per_client
def mezo(msg: Message, context: Context, client_id: int | None) -> Message:
    """Bring the client's replica up to date and send difference quotients of its loss (FedMeZO)."""
    from fedstats_app.client.replica import mezo

    return mezo(msg, context, client_id)


@app.evaluate("mezo")
@per_client
def evaluate_mezo(msg: Message, context: Context, client_id: int | None) -> Message:
    """Score the client's replica on the samples that it kept for evaluation."""
    from fedstats_app.client.replica import evaluate_mezo

    return evaluate_mezo(msg, context, client_id)


@app.train("personalise")
@per_client
def personalise(msg: Message, context: Context, client_id: int | None) -> Message:
    """Train a model of the client's own and say how it scores; the model stays here."""
    from fedstats_app.client.personal import personalise

    return personalise(msg, context, client_id)


@app.train("prototypes")
@per_client
def prototypes(msg: Message, context: Context, client_id: int | None) -> Message:
    """Train the client's own model toward the federation's prototypes and send its class means (FedProto)."""
    from fedstats_app.client.personal import prototypes

    return prototypes(msg, context, client_id)


@app.train("personal_heads")
@per_client
def personal_heads(msg: Message, context: Context, client_id: int | None) -> Message:
    """Solve a head of the client's own from local and global statistics and say how it scores."""
    from fedstats_app.client.personal import personal_heads

    return personal_heads(msg, context, client_id)


@app.evaluate("personal")
@per_client
def evaluate_personal(msg: Message, context: Context, client_id: int | None) -> Message:
    """Score the model that the client keeps from round to round."""
    from fedstats_app.client.personal import evaluate_personal

    return evaluate_personal(msg, context, client_id)
