"""A federation in which much goes wrong: nodes that cannot take part, one that is killed, one whose ClientApp dies."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.cli import main
from tests.support.deployment import Deployment, Script, wait_until

SITES = ("site-a", "site-b", "site-c")
# A ClientApp that does something when it opens what it keeps and a file is there.
FAILS = """
import os, sys, time

def fail(event, args):
    if event == "open" and "/mezo-" in str(args[0]) and os.path.exists(flag):
        {how}

flag = {flag!r}
sys.addaudithook(fail)
"""
FAILURES = {
    "site-a": "os.unlink(flag), os._exit(7)",
    "site-b": "while os.path.exists(flag): time.sleep(0.2)",
    "site-c": "os.unlink(flag), time.sleep(3600)",
}
# The killed node is back before the third one ends.
MEZO_ROUNDS = 3


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class FaultyRun:
    """A run with nodes that fail: its folder, its output, the ids of nodes by name, and files that nodes kept in it."""

    folder: Path
    output: str
    nodes: dict[str, str]
    kept: dict[str, dict[str, str]]


def merged_folder(root: Path, made: Path) -> Path:
    """Put all sites' images into one data set, ``train/<class>/<site>/*.png``, with the server's own to test on."""
    for image in made.glob("images/*/*/*.png"):
        target = root / "train" / image.parent.name / image.parent.parent.name / image.name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(image, target)
    shutil.copytree(made / "server" / "test", root / "test")
    return root


def site_config(beside: Deployment, script: Script, site: str) -> str:
    """Return the node-config of a site; the owner of one says where state lasts, that of the others does not."""
    more = f' state-dir="{beside.folder}/state-of-c"' if site == "site-c" else ""
    return f'data-path="{script.folder}/images/{site}" cache-dir="{beside.folder}/cache/{site}" train=true{more}'


def state_of(beside: Deployment, site: str) -> Path:
    """Return the folder of what FedMeZO keeps on a node: in its state-dir, or beside its cache."""
    root = beside.folder / "state-of-c" if site == "site-c" else beside.folder / "cache" / site / "state"
    (folder,) = root.glob("mezo-*")
    return folder


def kept_in(folder: Path) -> dict[str, str]:
    """Return the permissions of a folder, under the name ".", and of its files."""
    return {
        path.name if path != folder else ".": stat.filemode(path.stat().st_mode) for path in (folder, *folder.iterdir())
    }


def run_with_faults(script: Script, beside: Deployment, tmp_path: Path, meanwhile: Callable[[], object]) -> FaultyRun:
    """FedMeZO with three good nodes, one that serves a release, and all kinds of others.

    In round 2 one of the three is killed and the ClientApp of another dies; then both lose what they kept. The dead one
    comes back while the third is in round 3. Meanwhile something else is done: Flower waits a minute for what is lost.
    """
    weights = tmp_path / "other.safetensors"
    other_network(weights)
    released = tmp_path / "released.fedstats"
    words = ["--method", "fedncm", "-c", "input-size=64", "--node-config", f"state-dir='{tmp_path}/state'"]
    assert main(["release", f"{script.folder}/images/site-b", "--out", str(released), *words]) == 0
    faults = {
        "no-data": f'data-path="{tmp_path}/gone"',
        "released": f'data-path="release:{released}"',
        "other-network": f'data-path="{script.folder}/images/site-a" train=true backbone-weights="{weights}"',
    }
    beside.register(*SITES, *faults)
    flags = {site: tmp_path / f"{site} fails" for site in SITES}
    mortal = {site: failing(flag, FAILURES[site]) for site, flag in flags.items()}
    configs = {site: site_config(beside, script, site) for site in SITES} | faults
    running = {name: beside.supernode(name, config, environment=mortal.get(name)) for name, config in configs.items()}
    nodes = {name: beside.node_id(name) for name in configs}
    run = beside.command(
        "flwr", "run", ".", "demo", "--stream", "-c",
        f"input-size=64 min-clients=1 wait-timeout=600 settle-seconds=5 test-dataset='folder:{script.folder}/server' "
        f"method='fedncm' fine-tune='fedmezo' temperature=2.0 learning-rate=0.0004 "
        f"num-server-rounds={MEZO_ROUNDS} "
        f"plots=false output-dir='{tmp_path}/runs'",
    )  # fmt: skip
    log = f"flwr-{beside.commands}"

    def wait(condition: Callable[[], object], what: str) -> None:
        wait_until(lambda: condition() or run.poll() is not None, what, lambda: beside.log(log))
        if not condition():
            raise AssertionError(f"the run ended before this: {what}\n{beside.log(log)}")

    def rounds() -> int:
        return sum(len(lines(folder, "rounds.jsonl")) - 1 for folder in (tmp_path / "runs").glob("*"))

    def trained(site: str, times: int) -> bool:
        return "Sent" in "".join(beside.log(site).split("Sending: train.mezo")[times:])

    # The server has yet to hear of it, and of others, before it asks again.
    for site in ("site-a", "site-c"):
        wait(lambda site=site: trained(site, 1), f"{site} is trained")
        flags[site].touch()
    wait(lambda: not any(flag.exists() for flag in flags.values()), "one has died and one hangs in round 2")
    running["site-c"].kill()
    kept = {site: kept_in(state_of(beside, site)) for site in SITES}
    for site in ("site-a", "site-c"):
        shutil.rmtree(state_of(beside, site))
    wait(lambda: trained("site-b", 2), "the third is trained in round 2")
    flags["site-b"].touch()

    def return_after_round_2() -> None:
        wait(lambda: rounds() >= 2, "round 2 is done")
        come_back(beside, "site-c", configs["site-c"])
        flags["site-b"].unlink()

    with ThreadPoolExecutor(1) as pool:
        returned = pool.submit(return_after_round_2)
        meanwhile()
        returned.result()
    wait(lambda: run.poll() is not None, "the run is over")
    (folder,) = (tmp_path / "runs").iterdir()
    return FaultyRun(folder, beside.log(log), nodes, kept)


def failing(flag: Path, how: str) -> dict[str, str]:
    """Return the environment of a SuperNode whose ClientApp fails so once the flag is there."""
    folder = flag.with_name(f"{flag.name}, customised")
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(FAILS.format(flag=str(flag), how=how))
    return {"PYTHONPATH": str(folder)}


def other_network(path: Path) -> None:
    """Write weights that differ in one number."""
    from safetensors.torch import save_file

    state = {name: value.clone() for name, value in load_backbone("efficientnet_lite0").module.state_dict().items()}
    next(iter(state.values())).view(-1)[0] += 0.01
    save_file(state, path)


def come_back(federation: Deployment, name: str, config: str) -> None:
    """Start a node again that was killed, as systemd would: until the SuperLink takes it."""
    for _ in range(30):
        ids = federation.log(name).count("SuperNode ID: ")
        process = federation.supernode(name, config)
        wait_until(
            lambda ids=ids, process=process: (
                process.poll() is not None or federation.log(name).count("SuperNode ID: ") > ids
            ),
            f"{name} is back, or was refused",
        )
        if process.poll() is None:
            return
    raise AssertionError(f"{name} was refused 30 times:\n{federation.log(name)[-2000:]}")
