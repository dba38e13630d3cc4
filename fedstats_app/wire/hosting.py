"""Which clients a SuperNode hosts: the reply to ``query.clients``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from fedstats_app.wire.reading import Malformed, check_keys, list_of, reads_replies, record_of, typed, whole

QUERY_CLIENTS = "query.clients"
MAX_CLASS_NAMES = 100_000
MAX_CLASS_NAME_LENGTH = 200
# Sent only where they are not what is usual: by attribute the key and the usual.
OPTIONAL = {"trains": ("trains", True), "any_app": ("any-app", False)}
WORKER = ("process", "threads")


@dataclass(frozen=True)
class NodeInfo:
    """What a SuperNode says of itself.

    Attributes
    ----------
    partition_id, num_partitions : int or None
        In a simulation (or where node-config says so) the node hosts the clients ``partition_id``, ``partition_id +
        num_partitions``, ... of the run's data set. None: the node has data of its own and is one client.
    class_names : tuple of str
        Of a node with data of its own, in its own order; those that its policy keeps to itself are not among them.
    class_ids : tuple of int or None
        The numbers that its data itself has for them, ascending; None where its classes have names only.
    trains : bool
        False: the node's clients send statistics and evaluate, but take no part in training.
    any_app : bool
        True: the node's owner lets code of anybody's run there.
    process, threads : int
        Of a node that hosts partitions: what tells its process from others, and how many threads that computes with. 0
        where it does not say.
    """

    partition_id: int | None = None
    num_partitions: int | None = None
    class_names: tuple[str, ...] = ()
    class_ids: tuple[int, ...] | None = None
    trains: bool = True
    any_app: bool = False
    process: int = 0
    threads: int = 0


def node_info_reply(msg: Message, info: NodeInfo) -> Message:
    """Return the reply to a ``query.clients`` message."""
    if info.partition_id is None or info.num_partitions is None:
        record = ConfigRecord({"class-names": list(info.class_names)})
        if info.class_ids is not None:
            record["class-ids"] = list(info.class_ids)
    else:
        record = ConfigRecord({"partition-id": info.partition_id, "num-partitions": info.num_partitions})
        record.update({key: getattr(info, key) for key in WORKER if getattr(info, key)})
    for name, (key, usual) in OPTIONAL.items():
        if getattr(info, name) != usual:
            record[key] = not usual
    return Message(RecordDict({"node": record}), reply_to=msg)


@reads_replies
def read_node_info(reply: Message) -> NodeInfo:
    """Return what a SuperNode says of itself.

    Raises
    ------
    RejectedReply
        If it failed, or says something that cannot be.
    """
    record = record_of(reply.content, "node", ConfigRecord)
    check_keys("reply", reply.content, {"node"})
    says: dict[str, Any] = {name: typed({key: usual, **record}, key, bool) for name, (key, usual) in OPTIONAL.items()}
    optional = {key for key, _ in OPTIONAL.values()}
    if "class-names" in record and "partition-id" not in record:
        check_keys("node", record, {"class-names"}, optional | {"class-ids"})
        names = _read_class_names(record)
        return NodeInfo(class_names=names, class_ids=_read_class_ids(record, len(names)), **says)
    check_keys("node", record, {"partition-id", "num-partitions"}, optional | {*WORKER})
    num_partitions = whole(record, "num-partitions", 1)
    says |= {key: whole({key: 0, **record}, key) for key in WORKER}
    return NodeInfo(whole(record, "partition-id", 0, num_partitions - 1), num_partitions, **says)


def _read_class_names(record: ConfigRecord) -> tuple[str, ...]:
    names = list_of(record, "class-names", str, MAX_CLASS_NAMES)
    for name in names:
        if not (1 <= len(name) <= MAX_CLASS_NAME_LENGTH and name.isprintable()):
            raise Malformed(
                f"class-names: must have 1 to {MAX_CLASS_NAME_LENGTH} printable characters, got {name[:40]!r}"
            )
    if len(set(names)) != len(names):
        raise Malformed("class-names: must differ, got one twice")
    return tuple(names)


def _read_class_ids(record: ConfigRecord, number: int) -> tuple[int, ...] | None:
    if "class-ids" not in record:
        return None
    ids = list_of(record, "class-ids", int)
    if len(ids) != number or any(not low < high for low, high in itertools.pairwise([-1, *ids, 2**63])):
        raise Malformed(f"class-ids: must be {number} ascending whole numbers from 0, got {ids!r:.80}")
    return tuple(ids)
