"""Waiting, never for ever, for the nodes that a run needs, and learning which clients they host."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedstats_app.grid.asking import first_reasons, to_all
from fedstats_app.grid.class_lists import ClassList, align_class_lists
from fedstats_app.grid.client_grid import FIRST_POLL, next_poll, push
from fedstats_app.wire import QUERY_CLIENTS, NodeInfo, RejectedReply, read_node_info

logger = logging.getLogger("fedstats_app")


class TooFewClients(RuntimeError):
    """Fewer clients than the run needs came, or answered, in the time allowed."""


def wait_for_nodes(
    grid: Grid, minimum: int, *, expected: int | None = None, wait_timeout: float = 120.0, settle_seconds: float = 3.0
) -> list[int]:
    """Wait until enough nodes are there, and return their ids, ascending.

    Enough is ``expected`` nodes where the number is known; else at least ``minimum`` once no new one has come for
    ``settle_seconds``.

    Raises
    ------
    TooFewClients
        If fewer than ``minimum`` came within ``wait_timeout``.
    """
    started = changed = time.monotonic()
    known: set[int] = set()
    poll = FIRST_POLL
    while True:
        now, nodes = time.monotonic(), set(grid.get_node_ids())
        poll = next_poll(poll, progressed=nodes != known)
        if nodes != known:
            known, changed = nodes, now
        enough = len(known) >= max(minimum, expected or 1)
        settled = expected is not None or now - changed >= settle_seconds
        if enough and settled:
            return sorted(known)
        if now - started > wait_timeout:
            if len(known) >= max(minimum, 1):
                logger.warning("going on with %d nodes after %.0f s (wait-timeout)", len(known), wait_timeout)
                return sorted(known)
            raise TooFewClients(
                f"{len(known)} SuperNodes came within {wait_timeout:.0f} s (wait-timeout), "
                f"{max(minimum, 1)} are needed (min-clients)"
            )
        time.sleep(poll)


@dataclass
class Federation:
    """The clients of a run.

    Attributes
    ----------
    hosts : dict
        From client id to the SuperNode that hosts it.
    simulated : bool
        Whether clients are partitions of the run's data set; else every node is a client with data of its own.
    class_names : tuple of str
        Union of the class names of nodes with data of their own, sorted.
    refused : dict
        From node id to the reason why it takes no part.
    untrained, statistics_only : frozenset of int
        Clients whose owner keeps training off, and those without samples, which serve a release.
    any_app : tuple of int
        Nodes that say that they run any app's code.
    num_partitions : int
        In how many clients the run's data set is divided, whether all are hosted or not; 0 where it is not.
    workers : dict
        In a simulation from each process that answers for SuperNodes, one after another, to its threads.
    client_names : dict
        From client to the name that its owner gave it, "" for none; all others differ.
    targets : {"", "labels", "numbers"}
        What the samples of most nodes with data of their own have in place of one class; others take no part.
    """

    hosts: dict[int, int]
    simulated: bool
    class_names: tuple[str, ...] = ()
    refused: dict[int, str] = field(default_factory=dict)
    untrained: frozenset[int] = frozenset()
    statistics_only: frozenset[int] = frozenset()
    any_app: tuple[int, ...] = ()
    num_partitions: int = 0
    workers: dict[int, int] = field(default_factory=dict)
    client_names: dict[int, str] = field(default_factory=dict)
    targets: str = ""

    @property
    def supernodes(self) -> set[int]:
        """The SuperNodes that host clients."""
        return set(self.hosts.values())


def discover(
    grid: Grid,
    num_clients: int | Callable[[], int],
    *,
    min_clients: int,
    wait_timeout: float,
    settle_seconds: float,
    reply_timeout: float,
    known_classes: Sequence[str] = (),
    max_classes: int | None = None,
    on_reply: Callable[[Message], None] | None = None,
    progress: Callable[[str], None] = logger.info,
) -> Federation:
    """Wait for SuperNodes and ask each, once, which clients it hosts.

    In a simulation every node reports ``num-partitions``, the number that is waited for. Otherwise the run starts with
    ``min_clients`` nodes once no new one has come for ``settle_seconds`` and all have answered. What most nodes say
    counts (data of their own or partitions, how many partitions, what a class is called): a node that says something
    else takes no part.

    Parameters
    ----------
    num_clients : int or callable
        Into how many partitions the data set is split, or what returns it once nodes are known to host partitions; node
        p of n hosts the clients p, p + n, p + 2 n, ...
    min_clients, wait_timeout, settle_seconds, reply_timeout
        See run-config.
    known_classes : sequence of str
        Classes of an earlier run, which nodes with data of their own must agree with.
    max_classes : int, optional
        Of all nodes with data of their own together.
    on_reply : callable, optional
        Called with every reply of a node, to record what left it.

    Raises
    ------
    TooFewClients
        If not enough came, or answered, in time.
    """
    roll = _RollCall(grid, reply_timeout, on_reply)
    started, poll = time.monotonic(), FIRST_POLL
    while True:
        progressed = roll.ask_new_nodes() | roll.receive()
        now = time.monotonic()
        expected = roll.expected
        settled = not roll.waiting and now - roll.newest >= settle_seconds
        if expected is None:
            complete = settled and len(roll.infos) >= min_clients
        else:
            # A node that was refused will not come again: if it is one of those expected, none is missing.
            answered = len(roll.infos) + len(roll.refused)
            complete = roll.num_partitioned == expected or (settled and answered >= expected)
        if complete or now - started > wait_timeout:
            break
        poll = next_poll(poll, progressed=progressed)
        time.sleep(poll)
    roll.give_up(f"no reply within {wait_timeout:.0f} s (wait-timeout)")
    impostors = _impostors(roll.infos, {node.node_id: node.name for node in grid.get_nodes()})
    infos = {node: info for node, info in roll.infos.items() if node not in impostors}
    federation = _federation(infos, roll.refused | impostors, num_clients, known_classes, max_classes)
    federation.client_names = {node: infos[node].client_name for node in federation.hosts.values()}
    of_client = {client: infos[node] for client, node in federation.hosts.items()}
    federation.statistics_only = frozenset(client for client, info in of_client.items() if not info.evaluates)
    untrained = {client for client, info in of_client.items() if not info.trains}
    federation.untrained = frozenset(untrained - federation.statistics_only)
    federation.any_app = tuple(sorted(node for node in federation.supernodes if infos[node].any_app))
    for node in federation.any_app:
        progress(f"node {node} runs ANY app that a server sends (--any-app): nothing on it is protected")
    for node, reason in federation.refused.items():
        progress(f"node {node} takes no part: {reason}")
    if federation.simulated and expected is not None and len(federation.supernodes) < expected:
        progress(f"{len(federation.supernodes)} of {expected} SuperNodes came within {now - started:.0f} s")
    needed = max(min(min_clients, federation.num_partitions) if federation.simulated else min_clients, 1)
    if len(federation.hosts) < needed:
        reasons = first_reasons([f"node {node}: {reason}" for node, reason in federation.refused.items()])
        raise TooFewClients(
            f"{len(federation.hosts)} sites on {len(federation.supernodes)} SuperNodes came within "
            f"{now - started:.0f} s, {needed} are needed (min-clients, wait-timeout)"
            + (f"; refused: {reasons}" if reasons else "")
        )
    return federation


def _impostors(infos: Mapping[int, NodeInfo], registered: Mapping[int, str]) -> dict[int, str]:
    """Return why nodes take no part that claim a name which is, or may be, another's.

    A name is that of the node whose key was ``registered`` under it. One that no key has is that of the only node that
    claims it; several that claim it all stay out.
    """
    refused: dict[int, str] = {}
    for name in sorted({info.client_name for info in infos.values()} - {""}):
        claimed = [node for node, info in sorted(infos.items()) if info.client_name == name]
        owners = [node for node, of_key in registered.items() if of_key == name]
        whose = f"its client-name {name!r} is that of"
        if len(owners) == 1:
            reason = f"{whose} node {owners[0]}, whose key was registered under it"
            refused |= {node: reason for node in claimed if node not in owners}
        elif len(claimed) > 1:
            among = f"{whose} nodes {', '.join(map(str, claimed))} too, and of none of their keys alone"
            refused |= dict.fromkeys(claimed, f"{among}: flwr supernode register KEY --name {name!r} says whose it is")
    return refused


def _federation(
    infos: dict[int, NodeInfo],
    refused: dict[int, str],
    num_clients: int | Callable[[], int],
    known_classes: Sequence[str],
    max_classes: int | None,
) -> Federation:
    """Return the federation of the nodes that agree; the few that do not take no part, and are told why."""
    refused = dict(refused)
    own_data = {node: info for node, info in sorted(infos.items()) if info.partition_id is None}
    hosting = {node: info for node, info in sorted(infos.items()) if info.partition_id is not None}
    if len(own_data) >= len(hosting):
        for node in hosting:
            refused[node] = f"it hosts partitions, but {len(own_data)} nodes have data of their own (data-path)"
        kinds = Counter(info.targets for info in own_data.values())
        targets = max(sorted(kinds), key=kinds.__getitem__, default="")
        for node, info in own_data.items():
            if info.targets != targets:
                has, wanted = (kind or "one class" for kind in (info.targets, targets))
                refused[node] = f"its samples have {has} each, those of most nodes {wanted}"
        own_data = {node: info for node, info in own_data.items() if info.targets == targets}
        lists = {node: ClassList(info.class_names, info.class_ids) for node, info in own_data.items()}
        names, conflicts = align_class_lists(lists, known_classes, max_classes=max_classes)
        hosts = {node: node for node in own_data if node not in conflicts}
        return Federation(hosts, False, names, refused | conflicts, targets=targets)
    for node in own_data:
        refused[node] = f"it has data of its own (data-path), but {len(hosting)} nodes host partitions"
    number = num_clients() if callable(num_clients) else num_clients
    num_partitions = _most_common(info.num_partitions for info in hosting.values()) or 1
    hosts = {}
    for node, info in hosting.items():
        first = info.partition_id or 0
        if info.num_partitions != num_partitions:
            refused[node] = f"num-partitions must be {num_partitions}, as most nodes say, got {info.num_partitions}"
        elif first in hosts:
            refused[node] = f"partition-id {first} is taken by node {hosts[first]}"
        else:
            hosts.update(dict.fromkeys(range(first, number, num_partitions), node))
    threads = {hosting[node].process: hosting[node].threads for node in hosts.values()}
    workers = {process: number for process, number in threads.items() if process and number}
    return Federation(hosts, True, (), refused, num_partitions=number, workers=workers)


class _RollCall:
    """Asks every node once, as it comes; a node that does not answer delays no other."""

    def __init__(self, grid: Grid, reply_timeout: float, on_reply: Callable[[Message], None] | None) -> None:
        self.grid, self.reply_timeout, self.on_reply = grid, reply_timeout, on_reply
        self.infos: dict[int, NodeInfo] = {}
        self.refused: dict[int, str] = {}
        self.waiting: dict[str, tuple[int, float]] = {}
        self.newest = time.monotonic()
        self._asked: set[int] = set()

    @property
    def expected(self) -> int | None:
        """Number of partitions that most of the nodes in a simulation report."""
        hosting = [info.num_partitions for info in self.infos.values() if info.partition_id is not None]
        return _most_common(hosting) if 2 * len(hosting) > len(self.infos) else None

    @property
    def num_partitioned(self) -> int:
        """Number of different partitions of those expected."""
        expected = self.expected
        return len({info.partition_id for info in self.infos.values() if info.num_partitions == expected})

    def ask_new_nodes(self) -> bool:
        """Send the question to all nodes that were not there before, and return whether there were any."""
        new = sorted(set(self.grid.get_node_ids()) - self._asked)
        if not new:
            return False
        self._asked.update(new)
        self.newest = time.monotonic()
        messages = to_all(RecordDict(), QUERY_CLIENTS, new)
        for node, message_id in zip(new, push(self.grid, messages), strict=True):
            if message_id is None:
                self.refused[node] = "the message could not be sent"
            else:
                self.waiting[message_id] = (node, self.newest)
        return True

    def receive(self) -> bool:
        """Take the answers that are there, give up on nodes that had ``reply_timeout`` seconds; return whether any."""
        before = len(self.waiting)
        for reply in self.grid.pull_messages(list(self.waiting)) if before else ():
            node, _ = self.waiting.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if node is None:
                continue
            if self.on_reply is not None:
                self.on_reply(reply)
            try:
                self.infos[node] = read_node_info(reply)
            except RejectedReply as error:
                self.refused[node] = str(error)
        for message_id, (node, sent) in list(self.waiting.items()):
            if time.monotonic() - sent > self.reply_timeout:
                del self.waiting[message_id]
                self.refused[node] = f"no reply within {self.reply_timeout:.0f} s (reply-timeout)"
        return len(self.waiting) < before

    def give_up(self, reason: str) -> None:
        """Refuse all nodes that have not answered."""
        self.refused.update({node: reason for node, _ in self.waiting.values()})
        self.waiting = {}


def _most_common(numbers: Iterable[int | None]) -> int | None:
    """Return the number that comes most often, the largest of several, None without any."""
    counts = Counter(number for number in numbers if number is not None)
    return max(counts, key=lambda number: (counts[number], number), default=None)
