"""`fedstats demo`: a federation of SuperNodes on this machine, as docs/deployment.md sets one up on several.

TLS, SuperNode authentication, a folder of images per site. Then a run, and a prediction. Nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from fedstats_app.cli.demo import commands
from fedstats_app.cli.demo.processes import Processes
from fedstats_app.cli.errors import CommandError

# Files and folders of the demonstration's own, beside those of sites.
_TAKEN = {"ca", "server", "superlink", "run", "mezo", "cache", "flwr", "app"}
_SAMPLE_SITES = ("site-a", "site-b", "site-c")


def run(arguments: argparse.Namespace) -> int:
    """Set the federation up, run the app on it, and end it; 1 if a part of it failed.

    Raises
    ------
    CommandError
        If the images are not a folder per site.
    """
    sites = sites_in(Path(arguments.images).expanduser()) if arguments.images else _SAMPLE_SITES
    folder = _new_folder(arguments.dir)
    signal.signal(signal.SIGTERM, _end)
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
    """Return the names of the sites that a folder has a folder of.

    Raises
    ------
    CommandError
        If it has none, one cannot be called so, or one has no folder of images per class.
    """
    sites = sorted(path.name for path in images.iterdir() if path.is_dir()) if images.is_dir() else []
    if not sites:
        raise CommandError(f"--images must have a folder per site, got none in {images}")
    for site in sites:
        if site in _TAKEN or '"' in site or "\\" in site:  # node-config could not quote the last two
            raise CommandError(f"a site must not be called {site}")
        if not any(path.is_dir() for path in (images / site).iterdir()):
            raise CommandError(f"a site must have a folder of images per class, got none in {images / site}")
    return tuple(sites)


def _demonstrate(arguments: argparse.Namespace, folder: Path, sites: tuple[str, ...]) -> None:
    from fedstats_app.cli.demo.certificates import make_certificates, make_node_key
    from fedstats_app.cli.demo.sites import make_sites
    from fedstats_app.cli.new import write_app

    own, port = bool(arguments.images), arguments.port
    images = Path(arguments.images).expanduser().absolute() if own else folder / "images"
    write_app(folder / "app")
    (folder / "flwr").mkdir()
    with Processes(folder, folder / "app", commands.environment(folder)) as processes:
        if own:
            _step(f"sites: {' '.join(sites)}")
        else:
            _step("images of three sites")
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
        processes.foreground(commands.listed())
        if own:
            _step("run: heads in closed form")
            made = run_folder(processes.foreground(commands.run(commands.OWN, sites=len(sites)), "run"))
            _step(f"The heads are there. For a new image: fedstats predict {made} picture.png")
        else:
            _on_the_sample(processes, folder)
        if arguments.keep:
            _keep(processes, folder)


def _on_the_sample(processes: Processes, folder: Path) -> None:
    _step("run: heads in closed form, then two rounds of fine-tuning the best")
    made = run_folder(processes.foreground(commands.run(commands.PROBE), "run"))
    _step("predict")
    processes.foreground(commands.predict(made, folder / "new.png"))
    _step("run: fine-tuning without sending weights (FedMeZO), scored on the server's own images")
    run_folder(processes.foreground(commands.run(commands.MEZO, folder=folder), "mezo"))


def run_folder(last: str) -> str:
    """Return the folder of a run from its last line: `flwr run` exits with 0 also when the run failed."""
    if not os.path.isdir(last):  # of a long sentence Path.is_dir makes an error
        raise CommandError(f"the run failed: {last}")
    return last


def _keep(processes: Processes, folder: Path) -> None:
    _step(f"The federation is up: cd {folder}/app && FLWR_HOME={folder}/flwr flwr run . demo --stream. Ctrl-C ends it.")
    try:
        while processes.runs("superlink"):
            time.sleep(1)
    except (KeyboardInterrupt, SystemExit):
        return
    raise CommandError("the SuperLink ended")


def _new_folder(name: str) -> Path:
    if not name:
        return Path(tempfile.mkdtemp(prefix="fedstats-demo-"))
    folder = Path(name).expanduser().absolute()
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise CommandError(f"--dir must not be there, {folder} is") from None
    return folder


def _end(signum: int, frame: FrameType | None) -> None:
    """End as by Ctrl-C, so that what was started is ended too."""
    raise SystemExit(128 + signum)


def _step(text: str) -> None:
    print(f"\n== {text}", flush=True)
