"""Runs the command of this package."""

import sys

import fedstats_app.base.threads  # noqa: F401  # first: it must come before torch
from research.reproduce.command import main

if __name__ == "__main__":
    sys.exit(main())
