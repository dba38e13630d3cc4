"""What deployment/ and docs/deployment.md say is so: the commands, versions of pyproject.toml, no Ray on a node."""

import http.client
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from packaging.specifiers import SpecifierSet

from fedstats_app.cli.check.superlink import check_superlink
from fedstats_app.cli.demo import commands
from fedstats_app.cli.demo.certificates import make_certificates, make_node_key
from fedstats_app.cli.supernode.versions import TESTED
from tests.cli.certificates import listening, tls
from tests.docs.markdown import blocks
from tests.support.commands import REPOSITORY, output_of
from tests.support.simulation import nodes_of

DEPLOYMENT = REPOSITORY / "deployment"
DOCUMENT = REPOSITORY / "docs" / "deployment.md"
# What a node need not have. torchvision's networks need torchvision, parquet files need datasets; folders do not.
ABSENT = {"ray", "matplotlib", "flwr_datasets", "datasets", "pandas", "pyarrow"}
ABSENT |= {"torchvision", "timm", "sklearn", "scipy"}


# What the document's variables stand for, in this order: a site's images are named by two of them.
VALUES = {"$((PORT + number))": "8001", "$DIR": "/demo", "$IMAGES": "/demo/images", "$PORT": "8000"}
VALUES |= {"$site": "site-a", "$RUN": "/run"}


def lines_of(text: str) -> list[str]:
    """Return commands by line, those that go on in the next one as one."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def shown(command: str) -> list[list[str]]:
    """Return the words of every command of the document that begins so."""
    found = [line for block in blocks(DOCUMENT, "bash") for line in lines_of(block.code) if line.startswith(command)]
    for name, value in VALUES.items():
        found = [line.replace(name, value) for line in found]
    return [shlex.split(line.partition(" | tee")[0]) for line in found]


def block_with(text: str) -> str:
    [found] = [block.code for block in blocks(DOCUMENT, "bash") if text in block.code]
    return found


def bash(code: str, folder: Path) -> str:
    env = {"DIR": str(folder), "PORT": "8000", "site": "site-a", "PATH": os.environ["PATH"]}
    return output_of(["bash", "-euc", code], env=env, cwd=folder)


def test_the_document_shows_the_commands_of_the_demonstration() -> None:
    folder, images = Path("/demo"), Path("/demo/images")
    assert shown("flower-superlink") == [commands.superlink(folder, 8000)]
    assert shown("flwr supernode register") == [commands.register(folder, "site-a")]
    assert shown("fedstats node") == [commands.node(folder, images, 8000, 1, "site-a")]
    assert shown("flwr supernode list") == [commands.LISTED]
    assert shown("flwr run") == [commands.run(commands.PROBE), commands.run(commands.MEZO, folder=folder)]
    assert [words[1:] for words in shown("python -m fedstats_app.cli")] == [
        ["-m", "fedstats_app.cli.demo.sites", "/demo"],
        commands.predict("/run", folder / "new.png")[1:],
    ]


def test_the_document_s_variables_are_those_of_the_demonstration(tmp_path: Path) -> None:
    code = block_with("export FLWR_HOME")
    said = dict(line.partition("=")[::2] for line in bash(f"{code}\nenv", tmp_path).splitlines())
    set_there = re.findall(r"(\w+)=", code)
    known = commands.environment(tmp_path)
    assert {name: said[name] for name in set_there} == {name: known[name] for name in set_there}
    bash(f'export FLWR_HOME="$DIR/flwr"\n{block_with("[superlink.demo]")}', tmp_path)
    assert (tmp_path / "flwr" / "config.toml").read_text() == commands.connection(tmp_path, 8000)


@pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="the document uses them")
def test_the_document_s_certificates_and_keys_are_like_those_of_the_demonstration(tmp_path: Path) -> None:
    by_hand, made = tmp_path / "by hand", tmp_path / "made"
    by_hand.mkdir()
    made.mkdir()
    bash(block_with("openssl"), by_hand)
    bash(block_with("ssh-keygen").splitlines()[0], by_hand)
    make_certificates(made)
    make_node_key(made / "site-a.key")
    for folder in (by_hand, made):
        with listening(tls(folder / "server.pem")) as port:
            found = list(check_superlink(("127.0.0.1", port), str(folder / "ca.crt")))
        assert [one.level for one in found] == ["ok"] * 2, found
        key = load_ssh_private_key((folder / "site-a.key").read_bytes(), None)
        public = load_ssh_public_key((folder / "site-a.key.pub").read_bytes())
        assert isinstance(key, EllipticCurvePrivateKey) and isinstance(public, EllipticCurvePublicKey)
        assert key.curve.name == "secp384r1" and key.public_key() == public
        assert stat.S_IMODE((folder / "site-a.key").stat().st_mode) == 0o600


class SaysThePath(BaseHTTPRequestHandler):
    """In place of a SuperLink: says which path reached it."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_strangers_reach_the_nodes_paths_only(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    behind = ThreadingHTTPServer(("127.0.0.1", 0), SaysThePath)
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    behind.socket = secured.wrap_socket(behind.socket, server_side=True)
    threading.Thread(target=behind.serve_forever, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = (DEPLOYMENT / "nginx.conf").read_text().replace("/etc/fedstats", str(tmp_path))
    text = text.replace("127.0.0.1:8000;", f"127.0.0.1:{behind.server_port};").replace("8443", f"127.0.0.1:{port}")
    (tmp_path / "nginx.conf").write_text(text)
    own = f"daemon off; pid {tmp_path}/nginx.pid; error_log {tmp_path}/nginx.log;"
    words = ["-p", tmp_path, "-c", tmp_path / "nginx.conf", "-e", tmp_path / "log", "-g", own]
    proxy = subprocess.Popen(["nginx", *words])

    def answer(path: str) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=20)
        connection.request("POST", path, body=b"")
        response = connection.getresponse()
        return response.status, response.read().decode()

    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                assert answer("/v1/fleet/pull-messages") == (200, "/v1/fleet/pull-messages")
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline and proxy.poll() is None
                time.sleep(0.05)
        for path in (
            "/v1/control/start-run",
            "//v1/control/start-run",
            "/v1/fleet/../control/start-run",
            "/v1/fleet/%2e%2e/control/start-run",
            "/v1/fleet/..%2fcontrol/start-run",
            "/v1/Control/start-run",
            "/",
        ):
            assert answer(path)[0] == 404, path
        # What leads to the nodes' paths in the end arrives as such, and not as it was spelt.
        assert answer("/v1/control/..%2ffleet/pull-messages")[1] == "/v1/fleet/pull-messages"
    finally:
        proxy.terminate()
        proxy.wait(20)
        behind.shutdown()


def requirements(lines: list[str]) -> dict[str, str]:
    """Return version specifiers by name, extras left out."""
    found = {}
    for line in lines:
        match = re.fullmatch(r"([A-Za-z0-9-]+)(?:\[\w+\])?(.*)", line)
        assert match is not None, line
        found[match[1]] = match[2]
    return found


def test_a_node_s_requirements_are_some_of_the_project_s_with_a_flower_that_was_tested() -> None:
    project = requirements(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"])
    node = requirements(lines_of((DEPLOYMENT / "requirements-node.txt").read_text()))
    flower = project.pop("flwr")
    assert node.pop("flwr") == f"=={TESTED[-1]}" and SpecifierSet(flower).contains(TESTED[-1])
    assert node.items() <= project.items()
    more = {"flwr-datasets", "torchvision", "matplotlib", "cryptography", "jinja2", "packaging", "tomli-w"}
    assert set(project) - set(node) == more


NODE = """
import sys

class WithoutAbsent:
    def __init__(self, finders):
        self.finders = finders

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            return None
        specs = (finder.find_spec(name, path, target) for finder in self.finders)
        return next((spec for spec in specs if spec is not None), None)

sys.meta_path[:] = [WithoutAbsent(list(sys.meta_path))]
from tests.support.whole_app import main

main()
"""


def test_a_node_works_without_ray_and_all_else_that_only_simulations_need(tmp_path: Path) -> None:
    """The whole app, in fact: statistics, evaluation and fine-tuning, with the packages absent."""
    nodes = nodes_of(tmp_path, "ab", ("ant", "bee"), images=20, train=True)
    settings = {"backbone": "random:tiny", "input-size": 16, "plots": False, "output-dir": str(tmp_path / "runs")}
    settings |= {"settle-seconds": 0.1, "fine-tune": "full", "num-server-rounds": 1}
    program = f"ABSENT = {ABSENT!r}\n{NODE}"
    env = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    said = output_of([sys.executable, "-c", program, json.dumps(settings), json.dumps(nodes)], env=env)
    assert "[fedstats] completed; results are in" in said
    assert not re.search(r"failed|did not evaluate|not in the average", said), said


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOYMENT / "fedstats-supernode.service").read_text()
    assert f"Environment=NO_PROXY={commands.environment(Path())['NO_PROXY']}\n" in unit
    program = "/opt/fedstats/bin/fedstats node"
    assert f"ExecStart={program} " in unit
    here = tmp_path / "fedstats-supernode.service"
    # It wants the program to be there.
    here.write_text(unit.replace(f"ExecStart={program}", "ExecStart=/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True)
    assert done.returncode == 0 and "fedstats-supernode" not in done.stderr, done.stderr


def test_unit_and_container_name_options_that_the_node_has() -> None:
    usage = output_of([Path(sys.executable).parent / "flower-supernode", "--help"])
    for file in (DEPLOYMENT / "fedstats-supernode.service", DOCUMENT):
        commands = re.findall(
            r"(?:ExecStart=\S+ node|^fedstats node|fedstats-supernode \\)((?:.*\\\n)*.*)", file.read_text(), re.M
        )
        options = {option for command in commands for option in re.findall(r"(?<!\S)--[a-z-]+", command)}
        assert {"--superlink", "--node-config"} <= options, file.name
        assert [option for option in options if option not in usage] == [], file.name


def test_the_container_has_what_a_node_needs_and_starts_it() -> None:
    lines = (DEPLOYMENT / "Containerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert copied and all((REPOSITORY / name).exists() for name in copied)
    assert {"deployment/requirements-node.txt", "pyproject.toml", "fedstats_app", "conf"} <= set(copied)
    assert 'ENTRYPOINT ["fedstats", "node"]' in lines
    # A cluster that gives containers a uid of its own gives them group 0.
    assert {"    && chmod -R g=u /home/fedstats", "ENV HOME=/home/fedstats \\"} <= set(lines)


SITES = ("site-a", "site-b", "site-c")


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOYMENT / "compose.yaml").read_text()))


def words(service: dict[str, Any]) -> list[str]:
    """Return a service's options and their values as words of their own."""
    return [word for one in service["command"] for word in one.split("=", 1)]


def test_the_containers_run_the_document_s_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("FLWR_LOCAL_", "HF_"))]:
        monkeypatch.delenv(name)  # the user's own
    folder, found = Path("/demo"), compose()["services"]
    assert compose()["configs"]["flwr"]["content"] == commands.connection(folder, 8000)
    assert set(found) == {"superlink", *SITES}
    assert [*found["superlink"]["entrypoint"], *words(found["superlink"])] == shown("flower-superlink")[0]
    assert shown("fedstats node")[0] == ["fedstats", "node", *words(found["site-a"])]
    for number, site in enumerate(SITES, start=1):  # the container's entrypoint is `fedstats node`
        assert ["fedstats", "node", *words(found[site])] == commands.node(folder, folder / "images", 8000, number, site)
    known = commands.environment(folder)
    for service in found.values():
        own = {name: value for name, value in service["environment"].items() if name not in ("HOME", "FLWR_HOME")}
        kinds = ("FLWR_", "HF_", "NO_")
        assert own == {name: known[name] for name in known if name.startswith(kinds) and name != "FLWR_HOME"}
    registering = shlex.join(commands.register(folder, "site-a"))
    assert f"docker compose -f deployment/compose.yaml exec superlink {registering}" in DOCUMENT.read_text()


def test_nothing_of_the_containers_is_published_and_each_sees_its_own_secrets() -> None:
    for name, service in compose()["services"].items():
        assert not {"ports", "expose", "privileged", "cap_add"} & set(service) and service["cap_drop"] == ["ALL"]
        mounted = dict(volume.rsplit(":/", 1) for volume in service["volumes"])
        inside = {f"/{place.removesuffix(':ro')}" for place in mounted.values()}
        named = {word for word in words(service) if word.startswith("/demo/")} - {"/demo/superlink.db"}
        assert named <= inside
        secret = {place for place in inside if place.endswith(".key")}
        assert secret == {"/demo/server.key" if name == "superlink" else f"/demo/{name}.key"}
        assert all(place.endswith(":ro") for place in mounted.values() if re.search("key|crt|pem|images", place))
        if name != "superlink":
            assert service["network_mode"] == "service:superlink"
            assert {place for place in inside if "site-" in place} == {
                f"/demo/{name}.key",
                f"/demo/images/{name}",
                f"/demo/cache/{name}",
            }
    assert "network_mode" not in compose()["services"]["superlink"]  # nor the machine's own
