"""The whole app over a grid of its own process: `python -m tests.support.whole_app SETTINGS NODES`, both as JSON.

SETTINGS are run-config keys, NODES the node-configs. The last line printed is where the package lies.
"""

import json
import sys

from flwr.app import Context, RecordDict

import fedstats_app
from fedstats_app import client_app, server_app
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.testing import LocalGrid


def main() -> None:
    settings, nodes = map(json.loads, sys.argv[1:])
    config = {**AppConfig().to_run_config(), **settings}
    server_app.app(LocalGrid(client_app.app, nodes, config), Context(7, 1, {}, RecordDict(), config))
    print(fedstats_app.__file__)


if __name__ == "__main__":
    main()
