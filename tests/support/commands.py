"""Commands in processes of their own, which must end well."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def output_of(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300.0,
) -> str:
    """Run a command and return its standard output.

    Raises
    ------
    AssertionError
        If it ends with another code than 0, with all that it printed.
    """
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def printed_by(program: str, *arguments: str) -> str:
    """Run a program of Python in the repository and return its standard output, as :func:`output_of`."""
    return output_of([sys.executable, "-c", program, *arguments], cwd=REPOSITORY)
