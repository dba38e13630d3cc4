"""Processes of a demonstration: each has a log, and all are ended whatever happens."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fedstats_app.cli.errors import CommandError

# On a busy machine each of Flower's processes needs seconds of processor time before it says anything.
PATIENCE = 120.0
# For what is told to end; then it is killed.
_GRACE = 60.0
_SHOWN_LINES = 20


class Processes:
    """Starts commands and, as a context, ends those in the background.

    Parameters
    ----------
    folder : Path
        Of the logs, NAME.log.
    cwd : Path
        Working directory of the commands.
    environment : mapping
        Theirs.
    """

    def __init__(self, folder: Path, cwd: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._cwd = cwd
        self._environment = dict(environment)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def background(self, name: str, words: Sequence[str]) -> None:
        """Start a command whose output goes to its log."""
        with (self._folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                self._found(words),
                cwd=self._cwd,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_for(self, name: str, text: str) -> None:
        """Wait until a log has a text.

        Raises
        ------
        CommandError
            If the process ends before, or the time is over; with the end of its log.
        """
        path, deadline = self._folder / f"{name}.log", time.monotonic() + PATIENCE
        while text not in (said := path.read_text(encoding="utf-8", errors="replace")):
            if not self.runs(name) or time.monotonic() > deadline:
                shown = "\n".join(said.splitlines()[-_SHOWN_LINES:])
                raise CommandError(f'{name} did not say "{text}":\n{shown}')
            time.sleep(0.2)

    def runs(self, name: str) -> bool:
        """Return whether a command in the background has not ended."""
        return self._running[name].poll() is None

    def foreground(self, words: Sequence[str], log: str = "") -> str:
        """Run a command, print what it says and, with a name, keep it in a log; return its last line.

        Raises
        ------
        CommandError
            If it ends with another code than 0.
        """
        last, lines = "", []
        with subprocess.Popen(
            self._found(words),
            cwd=self._cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as process:
            try:
                for line in process.stdout or ():
                    print(line, end="", flush=True)
                    lines.append(line)
                    last = line.strip() or last
            except BaseException:
                process.terminate()
                raise
        if log:
            (self._folder / f"{log}.log").write_text("".join(lines), encoding="utf-8")
        if process.returncode:
            raise CommandError(f"{' '.join(words[:3])} ended with code {process.returncode}")
        return last

    def _found(self, words: Sequence[str]) -> list[str]:
        """Return a command with this environment's own program, which need not be on the path."""
        beside = Path(sys.executable).parent / words[0]
        return [str(beside) if beside.is_file() else words[0], *words[1:]]
