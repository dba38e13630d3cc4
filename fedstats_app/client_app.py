"""The ClientApp: its mods, and what answers which kind of message. It does no mathematics.

What needs torch is imported when it is asked: in deployment every message has a new process, which may have to begin
without it, and the question which clients a node hosts is answered without.
"""

from __future__ import annotations

from fedstats_app.base.threads import PROCESS, lasting_imports, num_threads  # first: it must come before torch

# isort: split

import functools
import importlib
import logging
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstats_app.client.ledger import is_within_budget, ledger_of, note_heads
from fedstats_app.data.clients import listed_classes, own_dataset
from fedstats_app.data.description import doubts
from fedstats_app.data.feature_cache import caches_kept_open
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.settings.of_message import REFUSED, node_of, refused_choice, run_of
from fedstats_app.training.limits import RefusedByPolicy
from fedstats_app.wire import NodeInfo, RejectedRequest, guard, node_info_reply, per_client
from fedstats_app.wire.serving import clients_in

logger = logging.getLogger("fedstats_app")

# Which clients there are, and sums of which none is seen.
SECURE = ("query.clients", "query.secure_")
# Of these, what is within an account of privacy.
ACCOUNTED = (
    "query.clients",
    *(f"query.secure_{name}" for name in ("keys", "shares", "noisy", "unmask")),
    "query.noisy_sums",
)
# They score what is being trained, or was trained on this node.
EVALUATIONS_OF_TRAINING = ("evaluate.model", "evaluate.mezo")


def owners_rules(msg: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Mod: answer only what the node's owner allows, whatever the handler and the server.

    A node that serves a release answers from it alone. On data of its own a node answers nothing that its ledger could
    not note first, and sends a run no more than its owner allows.
    """
    node = node_of(context.node_config)
    if node.release:
        from fedstats_app.client.release import answer

        return answer(msg, context)
    run, kind = run_of(context.run_config), msg.metadata.message_type
    if node.data_path and clients_in(msg) > 1:
        raise RejectedRequest("this node is one client, it cannot be asked for several")
    if reason := refused_choice(run, node):
        logger.error("refused: %s", reason)
        raise RefusedByPolicy(REFUSED)
    _check_kind(kind, run, node)
    if (ledger := ledger_of(run, node)) is not None:
        ledger.open()
        if kind == "evaluate.heads" and not node.trains:
            note_heads(ledger, msg.content, context)
    with caches_kept_open():
        reply = call_next(msg, context)
    if not is_within_budget(reply, run, node, context.run_id):
        raise RefusedByPolicy("this node has sent as much in this run as it sends in one")
    if ledger is not None and kind == "evaluate.heads":
        ledger.check_unchanged()
    return reply


def _check_kind(kind: str, run: AppConfig, node: NodeConfig) -> None:
    """Refuse kinds of messages that the owner excludes: outside of an account, without masks, or training."""
    outside = kind not in ACCOUNTED or (kind != "query.clients" and not run.federation.is_noisy)
    if node.dp_max_epsilon is not None and outside:
        raise RejectedRequest(
            "this node answers within its account only (dp-max-epsilon): a run with dp-epsilon whose noise is added "
            "before anything leaves (dp-where = sites or local)"
        )
    if node.secure_min_clients and not kind.startswith(SECURE):
        raise RejectedRequest("this node takes part in secure sums only (secure-min-clients): secure-sums = 'on'")
    if (kind.split(".")[0] == "train" or kind in EVALUATIONS_OF_TRAINING) and not node.trains:
        raise RefusedByPolicy("training is off on this node (train)")


app = ClientApp(mods=[guard, owners_rules])


@app.query("clients")
def clients(msg: Message, context: Context) -> Message:
    """Say which clients this node hosts."""
    node = node_of(context.node_config)
    if not node.data_path:
        info = NodeInfo(node.partition_id, node.num_partitions, process=PROCESS, threads=num_threads())
    else:
        config = run_of(context.run_config)
        dataset = own_dataset(node.data_path, node.data_options(config.data))
        # For this node's own log: nothing of it is in the reply.
        for line in (*dataset.notes, *doubts(dataset, None)):
            logger.warning("data: %s", line)
        # By the owner's floor alone: those that a run raises would tell how many samples every class has.
        names, ids = listed_classes(dataset, node.class_floor(0))
        if config.federation.is_noisy or node.dp_max_epsilon is not None:
            if not node.dp_classes:
                raise RejectedRequest("a run with dp-epsilon takes class names from the node's owner (dp-classes)")
            names, ids = node.dp_classes, None
        kind = "" if dataset.targets is None else dataset.targets.kind
        info = NodeInfo(class_names=names, class_ids=ids, client_name=node.client_name, targets=kind)
    return node_info_reply(msg, replace(info, trains=node.trains, any_app=node.any_app))


# Which function of which module answers which message.
ANSWERS = {
    "query.statistics": ("client.statistics", "statistics"),
    "query.secure_keys": ("client.secure", "keys"),
    "query.secure_shares": ("client.secure", "shares"),
    "query.secure_sums": ("client.secure_sums", "sums"),
    "query.secure_scores": ("client.secure_sums", "scores"),
    "query.secure_noisy": ("client.noisy_sums", "sums"),
    "query.noisy_sums": ("client.noisy_sums", "clear"),
    "query.secure_unmask": ("client.secure", "unmask"),
    "evaluate.heads": ("client.evaluation", "evaluate"),
    "train": ("client.training", "train"),
    "train.losses": ("client.training", "losses"),
    "evaluate.model": ("client.training", "evaluate_model"),
    "train.mezo": ("client.replica", "mezo"),
    "evaluate.mezo": ("client.replica", "evaluate_mezo"),
}


@functools.cache
def imported(module: str) -> ModuleType:
    """Import a module of :data:`ANSWERS`; a process that forks for messages does it for all of them."""
    with lasting_imports():
        return importlib.import_module(f"fedstats_app.{module}")


def answered_by(module: str, function: str) -> Callable[[Message, Context], Message]:
    """Make the handler that imports what answers a message on first use, and asks it for each client."""

    def answer(msg: Message, context: Context, client_id: int | None) -> Message:
        reply: Message = getattr(imported(module), function)(msg, context, client_id)
        return reply

    return per_client(answer)


for message_type, place in ANSWERS.items():
    category, _, action = message_type.partition(".")
    getattr(app, category)(action or "default")(answered_by(*place))
