"""The only readers of run-config and node-config.

It may import the options of every room below it; importing it imports neither torch nor Flower.
"""

from fedstats_app.config.app_config import AppConfig
from fedstats_app.config.node_config import DEFAULT_MIN_CLASS_COUNT, TRAINING, NodeConfig
from fedstats_app.config.of_message import node_of, run_of
from fedstats_app.options import ConfigError

__all__ = ["DEFAULT_MIN_CLASS_COUNT", "TRAINING", "AppConfig", "ConfigError", "NodeConfig", "node_of", "run_of"]
