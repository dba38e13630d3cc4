"""Answers of a node that serves a release: from the file alone; everything else is refused."""

from __future__ import annotations

from flwr.app import Context, Message, RecordDict

from fedstats_app.privacy import RefusedByPolicy
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.settings.of_message import node_of, run_of
from fedstats_app.wire import QUERY_CLIENTS, QUERY_STATISTICS, RejectedRequest, per_client, read_statistics_request
from fedstats_app.wire.release import Release, read_release
from fedstats_app.wire.serving import NodeInfo, node_info_reply


def answer(msg: Message, context: Context) -> Message:
    """Answer any message from the release that the node's owner named, or refuse it by what it does not hold."""
    kind, node = msg.metadata.message_type, node_of(context.node_config)
    if kind == QUERY_CLIENTS:
        return node_info_reply(msg, _info(read_release(node.release), node))
    if kind != QUERY_STATISTICS:
        raise RefusedByPolicy(f"{kind}: this node serves a release, which holds statistics and no samples (release)")
    return per_client(_statistics)(msg, context)


def _info(release: Release, node: NodeConfig) -> NodeInfo:
    info = release.info
    return NodeInfo(
        class_names=info.class_names,
        class_ids=info.class_ids,
        trains=False,
        evaluates=False,
        any_app=node.any_app,
        client_name=node.client_name or info.client_name,
        targets=info.targets,
    )


def _statistics(msg: Message, context: Context, client_id: int | None) -> Message:
    request, release = read_statistics_request(msg), read_release(node_of(context.node_config).release)
    floor = run_of(context.run_config).federation.min_class_count
    if release.fewest < floor:
        raise RefusedByPolicy(f"min-class-count: the run asks for {floor} samples a class, this release has fewer")
    try:
        content: RecordDict = release.answer(request)
    except RejectedRequest as error:
        raise RefusedByPolicy(str(error)) from error
    return Message(content, reply_to=msg)
