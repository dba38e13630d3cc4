"""The SuperNode that `fedstats node` starts: its owner, not the server, decides whose code answers messages.

This module has what an owner allows, and what an app bundle says of itself. It may import settings, wire and Flower.

A bundle is a zip archive from an untrusted source. Its one file `pyproject.toml` is read in memory, within bounds;
nothing is unpacked.
"""

from __future__ import annotations

import hashlib
import io
import re
import tomllib
import zipfile
from dataclasses import dataclass
from typing import Any

from fedstats_app.base.option import ConfigError
from fedstats_app.wire import PROTOCOL_VERSION

PROJECT_FILE = "pyproject.toml"
# Bytes once decompressed; this app's own has about 17,000.
MAX_PROJECT_SIZE = 200_000
# In a line. A key of n parts, which a line with as many dots may be, takes n^2 memory to read: 40 GB in this size.
MAX_DOTS = 50
# Others decompress without a bound on what one read gives.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class RefusedApp(Exception):
    """The app that was sent is not one that this node works for; the message says why."""


@dataclass(frozen=True)
class CodePolicy:
    """The code that answers the messages of a run; by default that of this package.

    Attributes
    ----------
    approved : frozenset of str
        SHA-256 of the bundles whose own code runs, in lower-case hex; all others are refused. Empty: this package runs.
    any_app : bool
        The code of any bundle runs.
    """

    approved: frozenset[str] = frozenset()
    any_app: bool = False

    @classmethod
    def of(cls, node_config: dict[str, Any], *, any_app: bool = False) -> CodePolicy:
        """Return the policy of a SuperNode with this ``--node-config``, of which ``approved-apps`` is read.

        Raises
        ------
        ConfigError
            If ``approved-apps`` is no list of SHA-256, or contradicts ``any_app``.
        """
        if "approved-apps" not in node_config:
            return cls(any_app=any_app)
        value = node_config["approved-apps"]
        digests = frozenset(digest.strip().lower() for digest in str(value).split(","))
        if not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests):
            raise ConfigError(
                f"node-config: approved-apps: must be SHA-256 of app bundles, 64 hex digits each, separated by commas, "
                f"got {value!r}"
            )
        if any_app:
            raise ConfigError("node-config: approved-apps contradicts --any-app: give one of them")
        return cls(approved=digests)

    @property
    def runs_others_code(self) -> bool:
        """True if code that the server sent may run."""
        return bool(self.approved) or self.any_app

    def runs_bundle(self, content: bytes) -> bool:
        """Return whether the own code of the bundle that the server sent is to run; else this package's.

        Raises
        ------
        RefusedApp
            If neither is to.
        """
        digest = hashlib.sha256(content).hexdigest()
        if self.approved and digest not in self.approved:
            raise RefusedApp(f"this node's approved-apps must have its SHA-256, which is {digest}")
        project = project_of(content)
        if self.runs_others_code:
            return True
        version: Any = project
        for name in ("tool", "fedstats", "protocol-version"):
            version = version.get(name) if isinstance(version, dict) else None
        if type(version) is not int or version != PROTOCOL_VERSION:
            raise RefusedApp(
                f"this node runs its own fedstats-app, whose protocol-version is {PROTOCOL_VERSION}, "
                f"that of the app sent is {version!r:.20}"
            )
        return False


def project_of(content: bytes) -> dict[str, Any]:
    """Return what a bundle's pyproject.toml says, without unpacking anything.

    Raises
    ------
    RefusedApp
        If there is not exactly one, of bounded size, that is TOML.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            found = [entry for entry in archive.infolist() if entry.filename == PROJECT_FILE]
            if len(found) != 1 or found[0].compress_type not in METHODS:
                raise RefusedApp(f"its bundle must have one {PROJECT_FILE}, stored or deflated, got {len(found)}")
            with archive.open(found[0]) as file:
                # What the archive says of the size may be a lie.
                text = file.read(MAX_PROJECT_SIZE + 1)
        if len(text) > MAX_PROJECT_SIZE:
            raise RefusedApp(f"{PROJECT_FILE} of its bundle must have at most {MAX_PROJECT_SIZE:,} bytes, got more")
        if any(line.count(b".") > MAX_DOTS for line in text.split(b"\n")):
            raise RefusedApp(f"{PROJECT_FILE} of its bundle must have no line with more than {MAX_DOTS} dots, got one")
        return tomllib.loads(text.decode())
    except RefusedApp:
        raise
    except Exception as error:  # a stranger's archive may raise anything
        raise RefusedApp(f"its bundle cannot be read: {type(error).__name__}: {error}") from error
