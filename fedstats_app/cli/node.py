"""`fedstats node`: a SuperNode whose owner says whose code answers messages; and what nodes have answered."""

from __future__ import annotations

import argparse
import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedstats_app import __version__
from fedstats_app.cli import CommandError
from fedstats_app.settings.node_config import STATE_FOLDER, NodeConfig

if TYPE_CHECKING:
    from fedstats_app.base.ledger import LedgerFile

# At which the epsilon of an account is shown.
_DELTA = 1e-5


def node(arguments: argparse.Namespace) -> int:
    """Run a SuperNode in this process until it ends."""
    from fedstats_app.cli.supernode.versions import UnknownFlower, check_flower

    try:
        warning = check_flower()
    except UnknownFlower as error:
        raise CommandError(str(error)) from error
    from fedstats_app.cli.supernode import CodePolicy
    from fedstats_app.cli.supernode.flower import node_config_of, run_supernode
    from fedstats_app.cli.supernode.process import command

    config = node_config_of(arguments.others)
    policy = CodePolicy.of(config, any_app=arguments.any_app)
    if not policy.runs_others_code:  # whose keys may be others
        NodeConfig.from_node_config(config)
    whose = f"runs fedstats-app {__version__} as installed here, whatever app the server sends"
    if policy.any_app:
        whose = "WARNING: --any-app: ANY CODE THAT THE SERVER SENDS runs here, and can read whatever this user can"
    elif policy.approved:
        whose = f"runs the code of {len(policy.approved)} approved apps, and no other"
    for line in filter(None, (warning, whose)):
        print(f"fedstats node: {line}", flush=True)
    run_supernode(arguments.others, lambda runtime: command(runtime, policy, os.getpid()))
    return 0


def ledger(arguments: argparse.Namespace) -> int:
    """Print what is in every ledger of a folder, after it was reset if that is asked for."""
    from fedstats_app.base.ledger import LedgerError
    from fedstats_app.cli.terminal import printable
    from fedstats_app.secure.account import composed, epsilon_of

    try:
        for ledger_file in _ledgers(arguments.state_dir):
            if arguments.reset:
                ledger_file.reset()
            found = ledger_file.summary()
            spent = [f"{number} {kind}" for kind, number in sorted(found.spent.items())]
            made = [
                f"{datetime.datetime.fromtimestamp(when, datetime.UTC):%Y-%m-%d %H:%M UTC}" for when in found.releases
            ]
            if made:
                folder = ledger_file.path.with_suffix("")
                spent.append(f"{len(made)} releases in {folder} (fedstats release --show FILE), the last of {made[-1]}")
            if found.noise:
                epsilon = epsilon_of(composed(found.noise), _DELTA)
                noise = f"{len(found.noise)} sums with noise, never reset"
                spent.append(f"{noise}: epsilon {epsilon:.3g} at delta {_DELTA:g}")
            print("\n  ".join([printable(found.data), str(ledger_file.path), *(spent or ["nothing was asked yet"])]))
    except LedgerError as error:
        raise CommandError(f"the ledger cannot be used: {error}") from error
    return 0


def allow(arguments: argparse.Namespace) -> int:
    """Print what waits for the owner's word, or allow what begins with some digits."""
    from fedstats_app.base.ledger import LedgerError
    from fedstats_app.cli.terminal import printable

    found = 0
    try:
        for ledger_file in _ledgers(arguments.state_dir):
            for kind in ("release", "secure"):
                waiting, allowed = ledger_file.among(f"{kind}-waits"), ledger_file.among(f"{kind}-allowed")
                for name, text in sorted(waiting.items()):
                    digest = name.partition("|")[2]
                    if f"{kind}-allowed|{digest}" in allowed or not digest.startswith(arguments.digits or ""):
                        continue
                    found += 1
                    if arguments.digits:
                        ledger_file.fact(f"{kind}-allowed|{digest}", "")
                    word = "allowed" if arguments.digits else "waits"
                    print(f"{word} {digest[:12]}: {printable(ledger_file.summary().data)}: {printable(text)}")
    except LedgerError as error:
        raise CommandError(f"the ledger cannot be used: {error}") from error
    if not found:
        print("nothing waits")
    return 0


def _ledgers(state_dir: str) -> list[LedgerFile]:
    from fedstats_app.base.ledger import PATTERN, LedgerFile
    from fedstats_app.data.feature_cache import default_cache_root

    folder = Path(state_dir).expanduser() if state_dir else default_cache_root() / STATE_FOLDER
    found = [LedgerFile(path) for path in sorted(folder.glob(PATTERN))]
    if not found:
        raise CommandError(f"there is no ledger in {folder}: no node with this state-dir was asked anything yet")
    return found
