"""The name by which a site is known again when its data have changed: a node's owner gives it, or there is none."""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

ABOUT, CLIENT_NAME, ENGINE = "about", "client-name", "engine"


def with_client_name(content: RecordDict, name: str) -> RecordDict:
    """Return a reply's content with the name of whom it is from; as it is for no name."""
    if not name:
        return content
    about = content.config_records.get(ABOUT, ConfigRecord())
    return RecordDict({**content, ABOUT: ConfigRecord({**about, CLIENT_NAME: name})})
