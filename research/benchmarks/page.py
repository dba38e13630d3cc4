"""All measurements of a page anew, one after another, on a machine with nothing else to do.

    python -m research.benchmarks.page --data FOLDER research/performance.md

It runs every command of the page's ``bash`` blocks from the folder of the repository, in a shell, with FOLDER for
``/data``, which holds ``client_sizes.csv``. What a command prints, and its seconds, follow its line. A command that
fails does not end the others; their exit code is 1 then.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from research.benchmarks.lines import parser_of

REPOSITORY = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_of(page: str) -> list[str]:
    """Return the command lines of a page's ``bash`` blocks, in their order."""
    return [line for block in _BLOCK.findall(page) for line in block.splitlines() if line.strip()]


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, default=Path("/data"))
    parser.add_argument("page", type=Path)
    given = parser.parse_args(arguments)
    data, failed = given.data.absolute(), 0
    environment = os.environ | {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "PYTHONPATH": str(REPOSITORY)}
    for command in commands_of(given.page.read_text(encoding="utf-8")):
        print(f"$ {command}", flush=True)
        started = time.perf_counter()
        local = command.replace("/data/", f"{shlex.quote(str(data))}/")
        code = subprocess.run(["bash", "-c", local], cwd=REPOSITORY, env=environment).returncode
        print(
            f"# exit code {code} after {time.perf_counter() - started:.1f} s, load {os.getloadavg()[0]:.1f}", flush=True
        )
        failed += code != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
