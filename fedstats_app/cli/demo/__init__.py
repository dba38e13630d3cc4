"""`fedstats demo`: a federation of SuperNodes on this machine, as docs/deployment.md sets one up on several.

TLS, SuperNode authentication, a folder of images per site. Then a run, and a prediction. Nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from fedstats_app.cli import CommandError
from fedstats_app.cli.demo import commands
from fedstats_app.data.layout import choose_splits

# Files and folders of the demonstration's own, beside those of sites.
_TAKEN = {"ca", "server", "superlink", "run", "mezo", "cache", "flwr", "app"}
_SAMPLE_SITES = ("site-a", "site-b", "site-c")
# Seconds. On a busy machine each of Flower's processes needs some of processor time before it says anything.
PATIENCE = 120.0
# Seconds for what is told to end; then it is killed.
_GRACE = 60.0
_SHOWN_LINES = 20


def run(arguments: argparse.Namespace) -> int:
    """Set the federation up, run the app on it, and end it; 1 if a part of it failed.

    Raises
    ------
    CommandError
        If the images are not a folder per site.
    """
    sites = sites_in(Path(arguments.images).expanduser()) if arguments.images else _SAMPLE_SITES
    if arguments.dir:
        folder = Path(arguments.dir).expanduser().absolute()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise CommandError(f"--dir must not be there, {folder} is") from None
    else:
        folder = Path(tempfile.mkdtemp(prefix="fedstats-demo-"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that what was started is ended too
    try:
        _demonstrate(arguments, folder, sites)
    except CommandError as error:
        print(error, file=sys.stderr)
        print(f"fedstats demo failed; logs are in {folder}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"fedstats demo was interrupted; logs are in {folder}", file=sys.stderr)
        return 130
    if not arguments.keep:
        shutil.rmtree(folder)
    return 0


def sites_in(images: Path) -> tuple[str, ...]:
    """List the sites of which a folder has a folder.

    Raises
    ------
    CommandError
        If it has none, or one cannot be called so.
    """
    sites = sorted(path.name for path in images.iterdir() if path.is_dir()) if images.is_dir() else []
    if not sites:
        raise CommandError(f"--images must have a folder per site, got none in {images}")
    if choose_splits(sites).train is not None:
        raise CommandError(
            f"--images must have a folder per site, and {images} has splits of one data set: {', '.join(sites)}. A "
            f"simulation divides it among clients: fedstats run \"dataset='{images.absolute()}'\""
        )
    for site in sites:
        if site in _TAKEN or '"' in site or "\\" in site:  # node-config could not quote the last two
            raise CommandError(f"a site must not be called {site}")
    return tuple(sites)


def _demonstrate(arguments: argparse.Namespace, folder: Path, sites: tuple[str, ...]) -> None:
    from fedstats_app.cli.demo.certificates import make_certificates, make_node_key
    from fedstats_app.cli.demo.sites import make_sites
    from fedstats_app.cli.new import write_app

    own, port = bool(arguments.images), arguments.port
    images = Path(arguments.images).expanduser().absolute() if own else folder / "images"
    write_app(folder / "app")
    (folder / "flwr").mkdir()
    with closing(Processes(folder, folder / "app", commands.environment(folder))) as processes:
        _step(f"sites: {' '.join(sites)}" if own else "images of three sites")
        if not own:
            make_sites(folder)
        _step("certificates")
        make_certificates(folder)
        _step("SuperLink")
        processes.background("superlink", commands.superlink(folder, port))
        processes.wait_for("superlink", "Uvicorn running on")
        (folder / "flwr" / "config.toml").write_text(commands.connection(folder, port), encoding="utf-8")
        _step("SuperNodes")
        for site in sites:
            make_node_key(folder / f"{site}.key")
            processes.foreground(commands.register(folder, site))
        for number, site in enumerate(sites, start=1):
            processes.background(site, commands.node(folder, images, port, number, site))
        for site in sites:
            processes.wait_for(site, "SuperNode ID: ")
        processes.foreground(commands.LISTED)
        if own:
            _step("run: heads in closed form")
            made = run_folder(processes.foreground(commands.run(commands.OWN, sites=len(sites)), "run"))
            _step(f"The heads are there. For a new image: fedstats predict {made} picture.png")
        else:
            _step("run: heads in closed form, then two rounds of fine-tuning the best")
            made = run_folder(processes.foreground(commands.run(commands.PROBE), "run"))
            _step("predict")
            processes.foreground(commands.predict(made, folder / "new.png"))
            _step("run: fine-tuning without sending weights (FedMeZO), scored on the server's own images")
            run_folder(processes.foreground(commands.run(commands.MEZO, folder=folder), "mezo"))
        if arguments.keep:
            started = f"cd {folder}/app && FLWR_HOME={folder}/flwr flwr run . demo --stream"
            _step(f"The federation is up: {started}. Ctrl-C ends it.")
            try:
                while processes.runs("superlink"):
                    time.sleep(1)
            except KeyboardInterrupt:
                return
            raise CommandError("the SuperLink ended")


def run_folder(last: str) -> str:
    """Take the folder of a run from its last line: `flwr run` exits with 0 also when the run failed."""
    if not os.path.isdir(last):  # of a long sentence Path.is_dir makes an error
        raise CommandError(f"the run failed: {last}")
    return last


def _step(text: str) -> None:
    print(f"\n== {text}", flush=True)


class Processes:
    """Starts commands in a working directory, each with a log NAME.log, and ends those in the background on closing."""

    def __init__(self, folder: Path, cwd: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._cwd, self._environment = folder, cwd, dict(environment)
        self._running: dict[str, subprocess.Popen[str]] = {}

    def _start(self, words: Sequence[str], stdout: Any) -> subprocess.Popen[str]:
        # This environment's own program need not be on the path.
        beside = Path(sys.executable).parent / words[0]
        process: subprocess.Popen[str] = subprocess.Popen(
            [str(beside) if beside.is_file() else words[0], *words[1:]],
            cwd=self._cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        return process

    def close(self) -> None:
        """End all that runs in the background."""
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
            self._running[name] = self._start(words, log)

    def runs(self, name: str) -> bool:
        """Tell whether a command in the background has not ended."""
        return self._running[name].poll() is None

    def wait_for(self, name: str, text: str) -> None:
        """Wait until a log has a text.

        Raises
        ------
        CommandError
            If the process ends before, or the time is over; with the end of its log.
        """
        path, deadline = self._folder / f"{name}.log", time.monotonic() + PATIENCE
        while text not in (content := path.read_text(encoding="utf-8", errors="replace")):
            if not self.runs(name) or time.monotonic() > deadline:
                shown = "\n".join(content.splitlines()[-_SHOWN_LINES:])
                raise CommandError(f'{name} did not say "{text}":\n{shown}')
            time.sleep(0.2)

    def foreground(self, words: Sequence[str], log: str = "") -> str:
        """Run a command, print what it says and, with a name, keep it in a log; return its last line.

        Raises
        ------
        CommandError
            If it ends with another code than 0.
        """
        lines = []
        with self._start(words, subprocess.PIPE) as process:
            try:
                for line in process.stdout or ():
                    print(line, end="", flush=True)
                    lines.append(line)
            except BaseException:
                process.terminate()
                raise
        if log:
            (self._folder / f"{log}.log").write_text("".join(lines), encoding="utf-8")
        if process.returncode:
            raise CommandError(f"{' '.join(words[:3])} ended with code {process.returncode}")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
