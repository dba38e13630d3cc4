"""A client's part in secure sums beside the sums themselves: keys, their shares, and unmasking.

Keys last as long as the run, in the state that Flower keeps of a node: they are on no disk. No torch is imported here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Context, Message

from fedstats_app.client.ledger import ledger_of
from fedstats_app.secure.graph import MIN_HOLDERS
from fedstats_app.secure.party import Party, Unsafe
from fedstats_app.secure.plan import IDENTITY_BYTES
from fedstats_app.settings.node_config import LEAST_CLIENTS, NodeConfig
from fedstats_app.settings.of_message import node_of, run_of
from fedstats_app.wire.reading import RejectedRequest
from fedstats_app.wire.secure import (
    keys_reply,
    parties_in,
    read_keys_request,
    read_shares_request,
    read_unmask_request,
    shares_reply,
    unmask_reply,
)

if TYPE_CHECKING:
    from fedstats_app.secure.peers import Peers

logger = logging.getLogger("fedstats_app")


def keys(msg: Message, context: Context, client_id: int | None) -> Message:
    """Begin a run of masks with new keys; those of an earlier one are gone."""
    keys_request = read_keys_request(msg)
    run = run_of(context.run_config)
    ledger, noisy = ledger_of(run, node_of(context.node_config)), run.federation.is_noisy
    identity = (client_id or 0).to_bytes(IDENTITY_BYTES) if ledger is None else ledger.identity(noisy=noisy)
    party = Party.new(keys_request.nonce, keys_request.rounds, identity)
    if peers := _peers(node_of(context.node_config)):
        party.signer = peers.public
        party.signature = peers.own.sign(party.public.signed_by(keys_request.nonce))
    history = [] if ledger is None else ledger.summed_over()
    party.notes["history"] = [digest.hex() for digest in history]
    remember(context, client_id, party)
    return keys_reply(msg, party.public, history)


def shares(msg: Message, context: Context, client_id: int | None) -> Message:
    """Give the neighbours shares of all keys."""
    plan, history = read_shares_request(msg)
    with remembered(context, client_id) as party:
        node = node_of(context.node_config)
        number, least = len(plan.parties), max(node.secure_min_clients, LEAST_CLIENTS)
        if number < least:
            raise Unsafe(f"{number} clients take part, secure-min-clients of this node's owner wants {least} or more")
        common_history = [digest.hex() for digest in history]
        if not set(party.notes["history"]) <= set(common_history):
            raise Unsafe("sums that this client was in before are left out of the history")
        party.notes["history"] = common_history
        if peers := _peers(node):
            peers.check_keys(plan)
            if (ledger := ledger_of(run_of(context.run_config), node)) is not None:
                ledger.keep_signers(plan, peers.allowed)
        sealed = party.sealed_shares(plan)
    return shares_reply(msg, sealed)


def unmask(msg: Message, context: Context, client_id: int | None) -> Message:
    """Give out one share of each neighbour's keys, if nothing follows from it but a sum of enough clients.

    Among peers only after enough have signed that they were asked the same; before, the answer is such a signature.
    """
    plan, turn, active, survivors, sealed, signatures = read_unmask_request(msg)
    node = node_of(context.node_config)
    with remembered(context, client_id) as party:
        kind, holders, names = party.notes.get(str(turn), ("", None, []))
        if (left := len(survivors)) < (least := max(node.secure_min_clients, LEAST_CLIENTS)):
            raise Unsafe(f"{left} clients are left, secure-min-clients of this node's owner wants {least} or more")
        if holders is not None and holders - (party.notes["present"] - left) < MIN_HOLDERS:
            raise Unsafe(f"of a class fewer than {MIN_HOLDERS} clients that have it may be left")
        others = plan.neighbours_among(party.index(plan), active)
        if len(sealed) != len(others):
            raise Unsafe(f"shares of {len(others)} neighbours must come with the question, got {len(sealed)}")
        answer = party.answer(plan, turn, active, survivors, dict(zip(others, sealed, strict=True)))
        ledger, noise = ledger_of(run_of(context.run_config), node), party.notes.get(f"noise|{turn}")
        if ledger is not None and noise is not None:
            # Differences of noisy sums have noise of their own, and each is charged.
            ledger.keep_survivors(noise, plan.identities(survivors))
        elif ledger is not None:
            for name in names:
                ledger.sum_over(name, plan.identities(survivors), least, parties_in(party.notes["history"], name))
        if party.notes.setdefault("unmasked", {}).setdefault(kind, turn) != turn:
            raise Unsafe(f"{kind} of this run of masks are known, and are not unmasked twice")
        if kind == "presence":
            party.notes["present"] = left
        if peers := _peers(node):
            about = [plan.digest, turn, active, survivors, party.notes["history"], party.notes[str(turn)]]
            statement = f"sum|{json.dumps(about)}".encode()
            if not signatures:
                return unmask_reply(msg, [], peers.own.sign(statement))
            peers.check_agreed(plan, survivors, statement, signatures)
    return unmask_reply(msg, [answer[other] for other in others])


@contextmanager
def remembered(context: Context, client_id: int | None) -> Iterator[Party]:
    """Give what a client remembers of the run of masks, and keep it as it is then; of what is unsafe nothing is kept.

    Raises
    ------
    RejectedRequest
        If there is no such run, or what is asked for is unsafe: the run of masks is over then.
    """
    record = context.state.get(_name(client_id))
    if not isinstance(record, ConfigRecord):
        raise RejectedRequest("this client has no keys for secure sums: they were never asked for, or are destroyed")
    party = Party.from_json(str(record["party"]))
    try:
        yield party
    except ValueError as error:
        del context.state[_name(client_id)]
        logger.error("keys of secure sums destroyed: %s", error)
        raise RejectedRequest(f"refused, and keys destroyed: {error}") from error
    remember(context, client_id, party)


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
