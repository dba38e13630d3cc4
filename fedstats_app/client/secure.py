"""A client's part in secure sums beside the sums themselves: keys, their shares, and unmasking.

Keys last as long as the run, in the state that Flower keeps of a node: they are on no disk. Shares are sealed and
opened without torch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord, Context, Message

from fedstats_app.client.ledger import ledger_of
from fedstats_app.data.differences import sets_of_targets, withheld_targets
from fedstats_app.secure.party import Party, Unsafe
from fedstats_app.secure.plan import IDENTITY_BYTES, Entry
from fedstats_app.secure.sets import digest_of_set, set_of
from fedstats_app.settings.node_config import LEAST_CLIENTS, NodeConfig
from fedstats_app.settings.of_message import node_of, run_of
from fedstats_app.training.limits import RefusedByPolicy
from fedstats_app.wire.reading import RejectedRequest
from fedstats_app.wire.secure import (
    HELD_OUT,
    NoisyRequest,
    class_names_in,
    keys_reply,
    read_keys_request,
    read_question,
    read_shares_request,
    read_unmask_request,
    shares_reply,
    unmask_reply,
)

if TYPE_CHECKING:
    from fedstats_app.client.site import Site
    from fedstats_app.secure.peers import Peers
    from fedstats_app.wire.statistics import StatisticsRequest

logger = logging.getLogger("fedstats_app")

# The same for all reasons, some of which would tell of the data.
REFUSED = "this client gives nothing to this sum; the reason is in its log, and `fedstats node allow` shows what waits"


def keys(msg: Message, context: Context, client_id: int | None) -> Message:
    """Begin a run of masks with new keys; those of an earlier one are gone."""
    from fedstats_app.client.site import Site  # needs torch

    named, question = read_keys_request(msg)
    request, sum_request = read_question(question)
    site = Site.of(context, client_id)
    site.check(request)
    ledger, noisy = site.ledger, isinstance(sum_request, NoisyRequest)
    if not noisy and (site.node.dp_max_epsilon is not None or (ledger and site.config.federation.min_class_count)):
        raise RejectedRequest("class lists leave this node by its owner's rules alone: min-class-count must be 0")
    peers = _peers(site.node)
    if noisy and ledger is not None and peers is None:
        # A server that is all the others takes their shares of noise off.
        raise RejectedRequest("a share of the noise is enough among secure-peers only: dp-where = 'local' needs none")
    names = [] if noisy else class_names_in(question)
    if named.num_classes != len(names):
        raise RejectedRequest(f"num-classes must be {len(names)} for this question, got {named.num_classes}")
    if ledger is not None and not noisy:
        ledger.check_hold_out(names, HELD_OUT)
    identity = (client_id or 0).to_bytes(IDENTITY_BYTES) if ledger is None else ledger.identity(noisy=noisy)
    sets = [] if ledger is None or noisy else ledger.summed_sets()
    classes, earlier = b"" if noisy else _class_list(site, request), tuple(sorted(map(digest_of_set, sets)))
    least = max(site.node.secure_min_clients, LEAST_CLIENTS)

    def entry(channel: bytes, masks: tuple[bytes, ...]) -> Entry:
        own = Entry(identity, channel, masks, classes, earlier, least)
        if peers is None:
            return own
        own = replace(own, signer=peers.public)
        return replace(own, signature=peers.own.sign(own.signed_by(named.nonce, question)))

    party = Party.new(named.nonce, named.rounds, question, entry)
    remember(context, client_id, party)
    return keys_reply(msg, party.own, sets)


def shares(msg: Message, context: Context, client_id: int | None) -> Message:
    """Give the neighbours shares of all keys, if nothing forbids a sum over all parties of the plan."""
    plan, sets = read_shares_request(msg)
    with remembered(context, client_id) as party:
        node, everybody = node_of(context.node_config), range(len(plan.parties))
        if len(everybody) < plan.least:
            raise Unsafe(f"{len(everybody)} clients take part, {plan.least} are wanted (secure-min-clients)")
        ledger = ledger_of(run_of(context.run_config), node)
        if peers := _peers(node):
            peers.check_entries(plan, party.question)
            if ledger is not None:
                ledger.keep_signers(plan, peers.allowed)
        party, sealed = party.sealed_shares(plan)
        party = replace(party, sets=tuple(sets))
        if ledger is not None and plan.num_classes:
            content = set_of(plan, class_names_in(party.question), everybody, everybody)
            ledger.check_set(content, party.sets, party.own.least)
        remember(context, client_id, party)
    return shares_reply(msg, sealed)


def unmask(msg: Message, context: Context, client_id: int | None) -> Message:
    """Give out one share of each neighbour's keys, if nothing follows from it but a sum of enough clients.

    Among peers only after enough have signed that they were asked the same; before, the answer is such a signature.
    """
    plan, turn, active, survivors, sealed, signatures = read_unmask_request(msg)
    node = node_of(context.node_config)
    with remembered(context, client_id) as party:
        party, answer = party.answer(plan, turn, active, survivors, sealed)
        sent, peers = party.sent[turn], _peers(node)
        if peers is not None:
            about = [plan.digest, party.question, sent.kind, turn, list(active), list(survivors)]
            statement = f"sum|{json.dumps(about)}".encode()
            if not signatures:
                remember(context, client_id, party)
                return unmask_reply(msg, [], peers.own.sign(statement))
            peers.check_agreed(plan, survivors, statement, signatures)
        ledger = ledger_of(run_of(context.run_config), node)
        if ledger is not None and sent.note:
            # Differences of noisy sums have noise of their own, and each is charged.
            ledger.keep_survivors(sent.note, plan.identities(survivors))
        elif ledger is not None:
            content = set_of(plan, class_names_in(party.question), active, survivors)
            ledger.check_set(content, party.sets, party.own.least, note=True)
        remember(context, client_id, party)
    return unmask_reply(msg, answer)


def _class_list(site: Site, request: StatisticsRequest) -> bytes:
    """Return one bit for each name in class lists, set for those of which this client adds samples to a sum."""
    split = site.split(request.class_names, holdout=request.holdout, seed=request.seed)
    present = np.bincount(split.dataset.labels[split.kept], minlength=request.num_classes) > 0
    if (targets := split.targets(request.spec.targets)) is not None:
        sets, persons = sets_of_targets(targets.numpy(), labels=True), split.persons(split.kept)
        present = np.asarray(sets[:, 0].any(axis=0))
        if site.floor > 1:
            whose = None if persons is None else persons.numpy()
            present[withheld_targets(sets, site.floor, whose)] = False
    if len(present) != request.num_classes:
        raise ValueError(f"the data have {len(present)} classes, the request {request.num_classes}")
    held_out = [len(split.held_out) > 0] * (request.holdout > 0)
    return np.packbits([*present, *held_out]).tobytes()


@contextmanager
def remembered(
    context: Context, client_id: int | None, hidden: tuple[type[Exception], ...] = (ValueError, RefusedByPolicy)
) -> Iterator[Party]:
    """Give what a client remembers of the run of masks; where it refuses, its keys are destroyed.

    Raises
    ------
    RejectedRequest
        If there is no such run, or for any of the ``hidden`` errors, which only the client's own log tells.
    """
    record = context.state.get(_name(client_id))
    if not isinstance(record, ConfigRecord):
        logger.error("no keys for secure sums: they were never asked for, or are destroyed")
        raise RejectedRequest(REFUSED)
    try:
        yield Party.from_json(str(record["party"]))
    except hidden as error:
        del context.state[_name(client_id)]
        logger.error("refused, and keys of secure sums destroyed: %s", error)
        raise RejectedRequest(REFUSED) from error


def remember(context: Context, client_id: int | None, party: Party) -> None:
    """Keep what a client remembers until the next message."""
    context.state[_name(client_id)] = ConfigRecord({"party": party.to_json()})


def _peers(node: NodeConfig) -> Peers | None:
    """Return whom a node takes part with.

    Raises
    ------
    RejectedRequest
        If its files cannot be read; the reason is in the log.
    """
    if not node.secure_peers:
        return None
    from fedstats_app.secure.peers import Peers  # nodes without do without

    try:
        return Peers.read(Path(node.secure_key).expanduser(), Path(node.secure_peers).expanduser())
    except (OSError, ValueError) as error:
        logger.error("secure-key or secure-peers cannot be read: %s", error)
        raise RejectedRequest(
            "this node cannot read its secure-key or secure-peers; the reason is in its log"
        ) from None


def _name(client_id: int | None) -> str:
    return f"secure-{client_id}"
