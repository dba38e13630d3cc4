"""`fedstats node ledger`: what nodes with data of their own have answered, and how it is forgotten."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from fedstats_app.cli.errors import CommandError
from fedstats_app.cli.text import printable
from fedstats_app.data.feature_cache_files import default_cache_root
from fedstats_app.settings.node_config import STATE_FOLDER
from fedstats_app.storage.ledger import PATTERN, LedgerError, LedgerFile, Summary


def run(arguments: argparse.Namespace) -> int:
    """Print every ledger in a folder, after it was reset if that is asked for."""
    given = arguments.state_dir
    folder = Path(given).expanduser() if given else default_cache_root() / STATE_FOLDER
    ledgers = [LedgerFile(path) for path in sorted(folder.glob(PATTERN))]
    if not ledgers:
        raise CommandError(f"there is no ledger in {folder}: no node with this state-dir was asked anything yet")
    try:
        for ledger in ledgers:
            if arguments.reset:
                ledger.reset()
            print("\n".join(_in_words(ledger.path, ledger.summary())))
    except LedgerError as error:
        raise CommandError(f"the ledger cannot be used: {error}") from error
    return 0


def _in_words(path: Path, summary: Summary) -> list[str]:
    began = datetime.datetime.fromtimestamp(summary.began, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    since = f"since {began}, in {summary.cells} cells" if summary.began else "nothing was asked yet"
    spent = [f"  {number} {kind}" for kind, number in sorted(summary.spent.items())]
    return [printable(summary.data), f"  {path}", f"  {since}", *(spent or ["  nothing is spent"])]
