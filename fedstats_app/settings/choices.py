"""What a run may not choose on a node that is not the server's: data sets, columns, files, names of a hub.

Whoever chooses the label's column learns another attribute of the same people. Whoever names a file learns from the
error whether it is there and what it holds, and a name of the hub is downloaded.
"""

from __future__ import annotations

from fedstats_app.backbones.engine import BFLOAT16
from fedstats_app.data.clients import data_spec
from fedstats_app.data.data_options import is_table
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig

# All that the server is told; what was asked for stands in the node's log.
REFUSED = "refused by this node's owner (the reason is in the log of this node)"
_ROLES = ("image", "text", "label")


def refused_choice(run: AppConfig, node: NodeConfig) -> str:
    """Return what a run chooses that only the node's owner may choose, in words for the node's log; "" if nothing.

    In a simulation all is the same user's.
    """
    if not node.is_owners:
        return ""
    if not node.data_path:
        dataset = run.data.dataset
        if dataset != "builtin" and dataset not in node.allowed_datasets:
            return f"dataset: the run names {dataset!r}, which must be among allowed-datasets of the node-config"
    elif is_table(data_spec(node.data_path)):
        for role in _ROLES:
            asked, own = getattr(run.data, f"{role}_column"), getattr(node, f"{role}_column")
            if asked and asked != own:
                return f"{role}-column: the run asks for {asked!r}, the node-config has {own or 'none'!r}"
    name, weights = run.backbone.backbone, run.backbone.backbone_weights
    if weights not in ("", "random") and not node.backbone_weights:
        return f"backbone-weights: the run names {weights!r}, the node-config has none"
    arguments = run.backbone.backbone_arguments
    if arguments and arguments != node.backbone_arguments:
        # They say how large a network is that must be built before its weights are seen not to fit.
        own = node.backbone_arguments or "none"
        return f"backbone-arguments: the run asks for {arguments!r}, the node-config has {own!r}"
    if run.backbone.engine == BFLOAT16 and node.engine:
        return f"engine: the run asks for {BFLOAT16!r}, the node-config has {node.engine!r}"
    if node.allowed_backbones is None:
        # Those with another prefix are looked up on a hub, or in a folder of that name.
        if ":" in name.removeprefix("random:"):
            return f"backbone: the run names {name!r}, which must be among allowed-backbones of the node-config"
    elif name not in node.allowed_backbones:
        return f"backbone: the run names {name!r}, allowed-backbones has {', '.join(node.allowed_backbones)}"
    return ""
