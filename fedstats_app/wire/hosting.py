"""Which clients a SuperNode hosts: the reply to ``query.clients``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from fedstats_app.wire.errors import RejectedReply

QUERY_CLIENTS = "query.clients"
MAX_CLASS_NAMES = 100_000
MAX_CLASS_NAME_LENGTH = 200


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
    """

    partition_id: int | None = None
    num_partitions: int | None = None
    class_names: tuple[str, ...] = ()
    class_ids: tuple[int, ...] | None = None
    trains: bool = True


def node_info_reply(msg: Message, info: NodeInfo) -> Message:
    """Return the reply to a ``query.clients`` message."""
    if info.partition_id is None or info.num_partitions is None:
        record = ConfigRecord({"class-names": list(info.class_names)})
        if info.class_ids is not None:
            record["class-ids"] = list(info.class_ids)
    else:
        record = ConfigRecord({"partition-id": info.partition_id, "num-partitions": info.num_partitions})
    if not info.trains:
        record["trains"] = False
    return Message(RecordDict({"node": record}), reply_to=msg)


def read_node_info(reply: Message) -> NodeInfo:
    """Return what a SuperNode says of itself.

    Raises
    ------
    RejectedReply
        If it failed, or says something that cannot be.
    """
    if reply.has_error():
        raise RejectedReply(reply.error.reason or f"error code {reply.error.code}")
    record = reply.content.get("node")
    if not isinstance(record, ConfigRecord):
        raise RejectedReply("node: must be a ConfigRecord")
    trains = record.get("trains", True)
    if not isinstance(trains, bool):
        raise RejectedReply(f"node: trains must be true or false, got {trains!r:.40}")
    if set(record) - {"trains", "class-ids"} == {"class-names"}:
        names = record["class-names"]
        if not isinstance(names, list) or len(names) > MAX_CLASS_NAMES or not all(_is_class_name(n) for n in names):
            raise RejectedReply(
                f"node: class-names must be at most {MAX_CLASS_NAMES} strings of 1 to {MAX_CLASS_NAME_LENGTH} "
                "printable characters"
            )
        if len(set(names)) != len(names):
            raise RejectedReply("node: class-names must differ, got one twice")
        return NodeInfo(
            class_names=tuple(str(name) for name in names),
            class_ids=_read_class_ids(record, len(names)),
            trains=trains,
        )
    if set(record) - {"trains"} != {"partition-id", "num-partitions"}:
        raise RejectedReply(
            "node: must have the keys partition-id and num-partitions, or class-names, "
            f"got {[key[:40] for key in sorted(record)[:5]]}"
        )
    partition_id, num_partitions = record["partition-id"], record["num-partitions"]
    if (
        not isinstance(partition_id, int)
        or not isinstance(num_partitions, int)
        or isinstance(partition_id, bool)
        or isinstance(num_partitions, bool)
        or not 0 <= partition_id < num_partitions
    ):
        raise RejectedReply(
            f"node: must say 0 <= partition-id < num-partitions, got {partition_id!r:.40} and {num_partitions!r:.40}"
        )
    return NodeInfo(partition_id, num_partitions, trains=trains)


def _read_class_ids(record: ConfigRecord, number: int) -> tuple[int, ...] | None:
    if "class-ids" not in record:
        return None
    ids = record["class-ids"]
    if (
        not isinstance(ids, list)
        or len(ids) != number
        or any(type(one) is not int for one in ids)
        or any(not low < high for low, high in itertools.pairwise([-1, *ids, 2**63]))
    ):
        raise RejectedReply(f"node: class-ids must be {number} ascending whole numbers from 0, got {ids!r:.80}")
    return tuple(int(one) for one in ids)


def _is_class_name(name: object) -> bool:
    return isinstance(name, str) and 1 <= len(name) <= MAX_CLASS_NAME_LENGTH and name.isprintable()
