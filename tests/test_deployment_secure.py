"""Secure sums on real SuperNodes: five peers that answer nothing else, each message a process, one killed on the way.

The run of sums with noise comes first, and loses the same site for as long as it takes. Flower waits for the lost one
for a minute. Meanwhile the memory of the server's processes is searched for what sites masked.
"""

import contextlib
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from deployment import audit
from fedstats_app.base.ledger import LedgerFile
from fedstats_app.report.statistics_file import load_statistics
from tests.docs.markdown import DOCS, blocks
from tests.server.test_exact_sums import weights
from tests.support.deployment import Deployment, wait_until
from tests.support.flower import COMPLETED, REAL_RUNS, descendants
from tests.support.simulation import clients, nodes_of, read_json, simulate, with_keys

pytestmark = REAL_RUNS
SITES, LEFT = "abcde", "abcd"
UNMASKING, SHARING = "Sending: query.secure_unmask", "Sending: query.secure_shares"
# Beside what the page says: a network that is quick.
QUICK: dict[str, Any] = {"max_client_samples": 1000, "wait_timeout": 600.0, "backbone": "random:tiny"}
QUICK |= {"input_size": 16, "plots": False}


def documented(first: str, also: str = "") -> list[str]:
    """Return the words of the page's command that begins so, and has something else in it."""
    code = [line for block in blocks(DOCS / "secure-sums.md", "bash") for line in block.code.splitlines()]
    return shlex.split(next(line for line in code if line.startswith(first) and also in line))


def memory_of(process: int) -> bytes:
    """Read the memory of a process that can be written to, without pages of zeros."""
    found: list[bytes] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(ProcessLookupError, FileNotFoundError))  # it has ended since
        maps = stack.enter_context(open(f"/proc/{process}/maps"))
        memory = stack.enter_context(open(f"/proc/{process}/mem", "rb", buffering=0))
        for place, rights, *_ in map(str.split, maps):
            start, end = (int(one, 16) for one in place.split("-"))
            for first in range(start, end if rights.startswith("rw") else start, 2**26):
                memory.seek(first)
                with contextlib.suppress(OSError):  # the process has given it back since
                    pages = np.frombuffer(memory.read(min(2**26, end - first)), np.uint64).reshape(-1, 512)
                    found.append(pages[pages.any(axis=1)].tobytes())
    return b"".join(found)


def started(federation: Deployment, words: list[str]) -> Callable[[Callable[[], bool], str], str]:
    """Start a run, of which the last words are settings; return what waits for it, or for its end, and its log."""
    *words, first, second = words
    run = federation.command(*words, f"{first} {second}")
    log = f"flwr-{federation.commands}"

    def wait(condition: Callable[[], bool], what: str) -> str:
        wait_until(lambda: condition() or run.poll() is not None, what, lambda: federation.log(log))
        return federation.log(log)

    return wait


def losing(
    federation: Deployment,
    name: str,
    node: subprocess.Popen[bytes],
    words: list[str],
    after: str,
    phase: str,
    answered: str,
    how: signal.Signals = signal.SIGKILL,
) -> Callable[[], str]:
    """Start a run that loses a site after an answer; return, once the others' next words are there, what ends it."""
    before = federation.log(name).count(after)
    wait = started(federation, words)
    log = f"flwr-{federation.commands}"
    # Of a reply that stays half sent Flower is sure after minutes only.
    wait(lambda: "Sent" in "".join(federation.log(name).split(after)[before + 1 :]), "a site has answered")
    node.send_signal(how)
    wait(lambda: answered in federation.log(log).partition(phase)[2], "words are there")
    return lambda: wait(lambda: False, "the run is over")


def folder_of(output: str) -> Path:
    """Return the run folder that a log ends with."""
    assert COMPLETED in output, output
    return Path(output.splitlines()[-1])


@dataclass(frozen=True)
class Survived:
    """Runs that lost a site: before its words were sent, and with noise between two sums.

    Attributes
    ----------
    folder, noisy, clear : Path
        Of the run, of that with noise, and of one of the sites that are left, in clear.
    ids : dict
        From site to the id of its node.
    memory : bytes
        Of SuperLink and ServerApp, when the words of the sums had come and nothing of them was unmasked.
    home : Path
        With the sites' ledgers.
    """

    folder: Path
    noisy: Path
    clear: Path
    ids: dict[str, str]
    memory: bytes
    home: Path


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survived]:
    home = tmp_path_factory.mktemp("home")
    federation = Deployment.insecure(home)
    try:
        (superlink,) = federation.started.values()
        sites = [dict(node) for node in nodes_of(home, SITES, ("ant", "bee", "cat"))]
        with_keys(home, sites)
        config = documented("fedstats node", "secure-min-clients=3")[-1]
        configs = {
            name: config.replace("/data/scans", str(site["data-path"]))
            .replace("site.pem", str(site["secure-key"]))
            .replace("peers.txt", str(site["secure-peers"]))
            + f' cache-dir="{home}/cache/{name}" state-dir="{home}/state/{name}" dp-classes="ant,bee,cat"'
            for name, site in zip(SITES, sites, strict=True)
        }
        nodes = {name: federation.supernode(name, own) for name, own in configs.items()}
        ids = {name: federation.node_id(name) for name in SITES}
        quick = " ".join(f"{name.replace('_', '-')}={value!r}".lower() for name, value in QUICK.items())

        def losing_e(also: str, after: str, phase: str, how: signal.Signals) -> Callable[[], str]:
            words = [*documented("flwr run . demo", also), f"{quick} output-dir='{home}/{also}'"]
            return losing(federation, "e", nodes["e"], words, after, phase, "4 of 5 sites answered", how)

        noisy = folder_of(losing_e("dp-epsilon", UNMASKING, "secure sum (moments)", signal.SIGSTOP)())
        nodes["e"].send_signal(signal.SIGCONT)
        ended = losing_e("method='fed3r'", SHARING, "secure sum (sums)", signal.SIGKILL)
        memory = b"".join(memory_of(one) for one in [superlink.pid, *descendants(superlink.pid)])
        left: list[Mapping[str, object]] = [
            {"data-path": site["data-path"], "min-gram-samples": 1} for site in sites[:-1]
        ]
        clear = simulate(
            home / "clear", node_configs=left, method="fed3r", exact_sums=True, save_statistics="clients", **QUICK
        )
        yield Survived(folder_of(ended()), noisy, clear, ids, memory, home)
    finally:
        federation.end()


def test_a_site_killed_between_two_sums_costs_its_samples_only(survived: Survived) -> None:
    outcomes = {str(one["client"]): one["outcome"] for one in clients(survived.folder)}
    assert outcomes == {**{survived.ids[name]: "merged" for name in LEFT}, survived.ids["e"]: "failed"}
    assert weights(survived.folder) == weights(survived.clear)


def test_no_site_s_numbers_are_in_the_server_s_memory(survived: Survived) -> None:
    """What the server is to know of a site is there: who it is."""
    bits = load_statistics(survived.clear).spec.fraction_bits or 0
    logs = "".join(path.read_text(errors="replace") for path in (survived.home / "insecure").glob("*.log"))
    kept = sorted((survived.clear / "clients").glob("*.safetensors"))
    assert len(kept) == len(LEFT)
    for path in kept:
        sums = load_file(path)["row-sums"]
        whole = (sums * 2.0**bits).astype("<i8")
        words = [np.ascontiguousarray(whole.view(np.uint8).reshape(-1, 8)[:, :size]) for size in range(3, 9)]
        for canary in (sums.astype("<f8"), sums.astype("<f4"), *words):
            assert canary.tobytes()[:64] not in survived.memory and str(canary[0][:4].tolist())[1:-1] not in logs
    for name in LEFT:
        (ledger,) = (survived.home / "state" / name).glob("ledger-*.sqlite")
        with_and_without_noise = LedgerFile(ledger).among("secure-identity").values()
        assert len(with_and_without_noise) == 2
        assert any(bytes.fromhex(identity) in survived.memory for identity in with_and_without_noise)


def test_noise_of_the_sites_that_are_left_keeps_the_promise(survived: Survived) -> None:
    """The site that was lost had helped with the first of two sums; who is in the second counts."""
    outcomes = {str(one["client"]): one["outcome"] for one in clients(survived.noisy)}
    assert outcomes == {**{survived.ids[name]: "merged" for name in LEFT}, survived.ids["e"]: "failed"}
    promised = read_json(survived.noisy, "results.json")["differential_privacy"]
    assert (promised["epsilon"], promised["delta"], promised["num_samples"]) == (8, 1e-6, 6000)


@pytest.mark.parametrize("kind", ["folder", "noisy"])
def test_sites_records_agree_with_the_run(survived: Survived, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = getattr(survived, kind)
    # Of the run in which it was killed before its sum, the last site has no record.
    names = LEFT if kind == "folder" else SITES
    words = [word for name in names for word in ("--site", str(survived.home / "state" / name))]
    assert audit.main([str(folder), *words]) == 0
    assert "ok     sites' own records of the sum: all were summed over the same 4" in capsys.readouterr().out


def test_a_site_s_log_warns_of_nothing_that_does_not_leave(survived: Survived) -> None:
    log = (survived.home / "insecure" / "a.log").read_text()
    assert "query.secure_sums" in log and "Gram matrix that leaves" not in log


def test_three_of_four_are_summed_and_two_of_three_until_the_third_is_back(tmp_path: Path) -> None:
    """One of four killed: the sum of the three. Then one of these three: one sentence, and when it is back the sum."""
    federation = Deployment.insecure(tmp_path)
    try:
        sites = [dict(node) for node in nodes_of(tmp_path, LEFT, ("ant", "bee", "cat"))]
        with_keys(tmp_path, sites)
        configs = {
            name: " ".join(f'{key}="{value}"' for key, value in site.items())
            + f' secure-min-clients=3 cache-dir="{tmp_path}/cache/{name}" state-dir="{tmp_path}/state/{name}"'
            for name, site in zip(LEFT, sites, strict=True)
        }
        nodes = {name: federation.supernode(name, own) for name, own in configs.items()}
        ids = {name: federation.node_id(name) for name in LEFT}
        quick = " ".join(f"{name.replace('_', '-')}={value!r}".lower() for name, value in QUICK.items())

        def words(number: int) -> list[str]:
            settings = f"secure-sums='on' method='fed3r' num-clients={number} min-clients=3"
            return ["flwr", "run", ".", "demo", "--stream", "-c", settings, f"{quick} output-dir='{tmp_path}/runs'"]

        of_three = folder_of(
            losing(federation, "d", nodes["d"], words(4), SHARING, "secure sum (sums)", "3 of 4 sites answered")()
        )
        outcomes = {str(one["client"]): one["outcome"] for one in clients(of_three)}
        assert outcomes == {**{ids[name]: "merged" for name in "abc"}, ids["d"]: "failed"}

        begun = time.monotonic()
        output = losing(federation, "c", nodes["c"], words(3), SHARING, "secure sum (sums)", "2 of 3 sites answered")()
        assert "2 of 3 clients are left, secure sums need 3 of them: nothing was unmasked" in output.splitlines()[-2]
        assert time.monotonic() - begun < 300 and COMPLETED not in output

        federation.supernode("c", configs["c"])
        assert weights(folder_of(started(federation, words(3))(lambda: False, "the run is over"))) == weights(of_three)
    finally:
        federation.end()
