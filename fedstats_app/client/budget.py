"""How many bytes a run may get from a node. No torch is imported here."""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import Message

from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.storage.files import write_atomically

# Runs that are remembered, the last ones.
KEPT_RUNS = 64
MEGABYTE = 1_000_000


def is_within_budget(reply: Message, config: AppConfig, node: NodeConfig, run_id: int) -> bool:
    """Return whether a node may send a reply by the arrays that its run has got so far, which is written down if so.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    limits = node.request_limits
    if limits is None or not node.data_path or not reply.has_content():
        return True
    # What is not in arrays is small.
    size = sum(record.count_bytes() for record in reply.content.array_records.values())
    if not size:
        return True
    path = node.state_root(config.cache) / "sent.json"
    sent = _read(path)
    total = sent.pop(str(run_id), 0) + size
    if total > limits.max_run_megabytes * MEGABYTE:
        return False
    newest = [*sent.items(), (str(run_id), total)][-KEPT_RUNS:]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, json.dumps(dict(newest)).encode(), mode=0o600)
    return True


def _read(path: Path) -> dict[str, int]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}
