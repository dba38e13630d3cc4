"""`fedstats node`: a SuperNode whose owner says whose code answers messages."""

from __future__ import annotations

import argparse
import os

from fedstats_app import __version__
from fedstats_app.cli.errors import CommandError


def run(arguments: argparse.Namespace) -> int:
    """Run a SuperNode in this process until it ends."""
    try:
        from fedstats_app.cli.supernode.flower import node_config_of, run_supernode
        from fedstats_app.cli.supernode.process import command
    except ImportError as error:
        raise CommandError(
            f"the Flower installed here is not one that this command knows ({error}): install one that "
            f"fedstats-app {__version__} names, or use flower-supernode, which runs any app that the server sends"
        ) from error
    from fedstats_app.cli.supernode.bundle import CodePolicy

    policy = CodePolicy.of(node_config_of(arguments.others), any_app=arguments.any_app)
    print(f"fedstats node: {_in_words(policy.approved, any_app=policy.any_app)}", flush=True)
    run_supernode(arguments.others, lambda runtime: command(runtime, policy, os.getpid()))
    return 0


def _in_words(approved: frozenset[str], *, any_app: bool) -> str:
    if any_app:
        return "WARNING: --any-app: ANY CODE THAT THE SERVER SENDS runs here, and can read whatever this user can"
    if approved:
        return f"runs the code of {len(approved)} approved apps, and no other"
    return f"runs fedstats-app {__version__} as installed here, whatever app the server sends"
