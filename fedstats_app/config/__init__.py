"""The only readers of run-config and node-config."""

from fedstats_app.config.app_config import AppConfig
from fedstats_app.config.checks import ConfigError
from fedstats_app.config.names import BACKBONES, METHOD_NAMES, OPTIMIZER_NAMES, PARTITIONERS, PERSONAL_APPROACHES
from fedstats_app.config.node_config import DEFAULT_MIN_CLASS_COUNT, TRAINING, NodeConfig

__all__ = [
    "BACKBONES",
    "DEFAULT_MIN_CLASS_COUNT",
    "METHOD_NAMES",
    "OPTIMIZER_NAMES",
    "PARTITIONERS",
    "PERSONAL_APPROACHES",
    "TRAINING",
    "AppConfig",
    "ConfigError",
    "NodeConfig",
]
