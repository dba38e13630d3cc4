"""The command `fedstats`: what `flwr` does not do. It works offline and without Flower running.

Importing this package imports neither torch nor flwr: `fedstats --help` answers at once, and a command imports what it
needs.

It may import everything, each command what it needs.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from fedstats_app.base.threads import lasting_imports  # it must come before torch
from fedstats_app.cli.arguments import COMMANDS, parsed

# As shells say it of what Ctrl-C ended.
STOPPED = 130
# As argparse's own for wrong arguments. 1 is for a command that did its work and found something wrong.
COULD_NOT_WORK = 2
# Flower reports when it starts and ends, and looks for updates, unless these are set before it is imported.
_QUIET_FLOWER = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


class CommandError(Exception):
    """A command cannot do its work; the message says why and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Its words, without the program's name; by default those of the process.

    Returns
    -------
    int
        The exit code: 0 if all is well; 1 if the command found something wrong (an unreadable image, a FAIL of
        `check`); 2 if it could not do its work; 130 after Ctrl-C. Wrong arguments and `--help` end the process, as
        argparse does.
    """
    from fedstats_app.base.progress import print_any_text  # --help does without

    arguments = parsed(argv)
    for name, value in _QUIET_FLOWER.items():
        os.environ.setdefault(name, value)
    print_any_text()
    home = os.path.expanduser("~")
    try:
        if home == "~":
            raise CommandError(
                "this user has no home folder: set HOME to one that it may write to, such as HOME=/tmp/me"
            )
        code: int = _command(COMMANDS[arguments.command].home)(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output, such as `head`, has seen enough. Python would complain once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"fedstats {arguments.command}: stopped by Ctrl-C", file=sys.stderr)
        return STOPPED
    except (CommandError, ValueError, OSError) as error:
        print(f"fedstats {arguments.command}: {error}", file=sys.stderr)
        if os.path.isdir(home) and not os.access(home, os.W_OK):
            print(f"nothing can be written to the home folder {home}; HOME=/A/FOLDER names another", file=sys.stderr)
        return COULD_NOT_WORK
    return code


def _command(home: str) -> Callable[..., int]:
    module, _, function = home.rpartition(".")
    with lasting_imports():
        command: Callable[..., int] = getattr(importlib.import_module(f"fedstats_app.cli.{module}"), function)
    return command
