"""What every handler of the ClientApp asks of its node first: its configuration, its part of the data, its backbone."""

from __future__ import annotations

from flwr.app import Context

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.loading import loaded_backbone
from fedstats_app.config import AppConfig, NodeConfig
from fedstats_app.wire import RejectedRequest


def configs(context: Context) -> tuple[AppConfig, NodeConfig]:
    """Return the run's and the node's configuration."""
    return AppConfig.from_run_config(context.run_config), NodeConfig.from_node_config(context.node_config)


def partition_of(node: NodeConfig, client_id: int | None) -> int | None:
    """Return the partition; None for a node with data of its own, whose id Flower draws anew for every run."""
    return None if node.data_path else client_id


def feature_reader(config: AppConfig, node: NodeConfig, fingerprint: str) -> FeatureReader:
    """Return a reader with the backbone that the server asks for, or refuse before any image is read.

    Raises
    ------
    RejectedRequest
        If this node's backbone is another one.
    """
    backbone = loaded_backbone(config.backbone_for(own_data=bool(node.data_path), weights=node.backbone_weights))
    if fingerprint and backbone.fingerprint != fingerprint:
        raise RejectedRequest(
            f"this node's backbone {backbone.name} ({backbone.weights_source}, fingerprint "
            f"{backbone.fingerprint[:16]}) is not the server's, fingerprint {fingerprint[:16]}"
        )
    return FeatureReader(backbone, node.cache_root(config.cache))
