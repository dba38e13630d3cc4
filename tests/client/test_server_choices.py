"""What a server may not choose on a node with data of its own: columns, files, names of the hub, what errors say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from safetensors.torch import save_file

from fedstats_app import client_app
from fedstats_app.base.option import ConfigError
from fedstats_app.data.feature_cache import default_cache_root
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.settings.of_message import REFUSED, refused_choice
from fedstats_app.testing import instruction
from fedstats_app.wire import StatisticsRequest, read_node_info
from fedstats_app.wire.serving import pack_requests
from tests.support.simulation import site_folder

Node = dict[str, object]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node with images of its own."""
    return {"data-path": site_folder(tmp_path / "site", ("ant", "bee"), seed=1), "state-dir": str(tmp_path / "state")}


def ask(
    node: Mapping[str, object], kind: str = "query.clients", content: RecordDict | None = None, **run: object
) -> Message:
    """Return what a node answers to a server with this run-config."""
    settings: dict[str, Any] = {"backbone": "random:tiny", "input_size": 16, **run}
    context = Context(1, 4, dict(node), RecordDict(), AppConfig.of(**settings).to_run_config())
    return client_app.app(instruction(content or RecordDict(), kind), context)


def statistics_of(*classes: str) -> RecordDict:
    return StatisticsRequest(len(classes), class_names=classes).to_content()


@pytest.fixture
def patients(tmp_path: Path) -> Node:
    """Return a node with a table of notes that has a label to learn, and a column that is nobody's business."""
    (tmp_path / "notes.csv").write_text("text,remarks,label,has_hiv\nnote,remark,a,no\n")
    return {"data-path": str(tmp_path / "notes.csv")}


@pytest.mark.parametrize("choice", [{"label_column": "has_hiv"}, {"text_column": "remarks"}, {"image_column": "x"}])
def test_columns_are_the_owner_s_choice(patients: Node, choice: dict[str, str]) -> None:
    [(name, column)] = choice.items()
    run, key = AppConfig.of(**choice), name.replace("_", "-")
    assert column in refused_choice(run, NodeConfig.from_node_config(patients))
    node = NodeConfig.from_node_config({**patients, key: column})
    assert not refused_choice(run, node) and not refused_choice(AppConfig(), node)
    assert getattr(node.data_options(AppConfig().data), name) == column
    assert refused_choice(AppConfig.of(**{name: "another"}), node)


@pytest.mark.parametrize("there", [True, False])
def test_weights_that_a_server_names_tell_nothing(
    node: Node, tmp_path: Path, there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether a private file exists, and the names of its tensors, came back in the error."""
    secret = tmp_path / "hiv-model.safetensors"
    if there:
        save_file({"secret.tensor": torch.zeros(2)}, secret)
    reply = ask(node, "query.statistics", statistics_of("ant", "bee"), backbone_weights=str(secret))

    assert reply.has_error() and reply.error.reason == f"RefusedByPolicy: {REFUSED}"
    assert str(secret) in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "transformers:evil/model",
        "sentence:/home/user/private",
        "timm:resnet18",
        "random:timm:resnet18",
        "timm:hf-hub:evil/model",
        "timm:hf-hub:evil/model@v2",
        "timm:local-dir:/home/user/private",
        "vision:evil/model",
        "vision:/home/user/private",
    ],
)
def test_a_server_cannot_name_what_is_downloaded_or_which_folder_is_read(node: Node, name: str) -> None:
    for kind in ("query.clients", "query.statistics", "train", "evaluate.heads"):
        reply = ask(node, kind, backbone=name, input_size=0)
        assert reply.error.reason == f"RefusedByPolicy: {REFUSED}"
    reply = ask({**node, "allowed-backbones": f"{name},squeezenet1_1"}, backbone=name, input_size=0)
    assert read_node_info(reply).class_names == ("ant", "bee")


def test_a_list_of_backbones_is_all_that_a_node_runs(node: Node) -> None:
    assert not ask(node).has_error()
    assert ask({**node, "allowed-backbones": "resnet18"}).error.reason == f"RefusedByPolicy: {REFUSED}"
    with pytest.raises(ConfigError, match="allowed-backbones: must be one of"):
        NodeConfig.from_node_config({**node, "allowed-backbones": "resnet1"})


def test_where_an_owner_names_weights_a_runs_are_not_looked_at(node: Node) -> None:
    node = {**node, "backbone-weights": "random"}
    content = statistics_of("ant", "bee")

    reply = ask(node, "query.statistics", content, backbone="tiny", backbone_weights="/nowhere/x.safetensors")

    assert not reply.has_error()


def test_errors_say_nothing_of_a_nodes_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gone = tmp_path / "ward-7" / "scans"
    node: dict[str, object] = {"data-path": str(gone), "state-dir": str(tmp_path / "state")}

    reply = ask(node)

    assert reply.error.reason == "DatasetError: the reason is in the log of this node" and str(gone) in caplog.text
    site_folder(gone, ("ant", "bee"), seed=1)
    weights = tmp_path / "private.safetensors"
    save_file({"secret.tensor": torch.zeros(2)}, weights)
    broken = {**node, "backbone-weights": str(weights)}
    reply = ask(broken, "query.statistics", statistics_of("ant", "bee"), backbone="tiny")
    assert reply.error.reason == "WeightsError: the reason is in the log of this node"
    assert "secret.tensor" in caplog.text


def test_a_node_that_is_one_client_is_not_asked_for_several(node: Node) -> None:
    """Or each of them would be another answer, and their errors would go round what keeps them from the server."""
    reply = ask(node, "query.statistics", pack_requests(statistics_of("ant", "bee"), [0, 1]))

    assert reply.error.reason == "RejectedRequest: this node is one client, it cannot be asked for several"


def test_errors_of_one_client_in_a_list_say_no_more(tmp_path: Path) -> None:
    node = {"data-path": str(tmp_path / "ward-7"), "state-dir": str(tmp_path / "state")}

    reply = ask(node, "query.statistics", pack_requests(statistics_of("ant", "bee"), [4]))

    assert dict(reply.content["failed"]) == {"4": "DatasetError: the reason is in the log of this node"}


def test_a_deployed_node_of_partitions_reads_and_writes_what_its_owner_names(patients: Node, tmp_path: Path) -> None:
    node: dict[str, object] = {"partition-id": 0, "num-partitions": 1, "deployed": True}
    theirs = f"csv:{patients['data-path']}"

    assert ask(node, dataset=theirs).error.reason == f"RefusedByPolicy: {REFUSED}" and not ask(node).has_error()
    assert not ask({**node, "allowed-datasets": f"hub:x/y,{theirs}"}, dataset=theirs).has_error()
    assert ask(node, backbone_weights="/etc/passwd").error.reason == f"RefusedByPolicy: {REFUSED}"
    options = AppConfig.of(cache_dir=str(tmp_path / "theirs")).cache
    assert NodeConfig.from_node_config(node).cache_root(options) == default_cache_root()


def test_a_simulation_runs_what_its_user_says(patients: Node) -> None:
    node = {"partition-id": 0, "num-partitions": 1}

    reply = ask(
        node, dataset=f"csv:{patients['data-path']}", label_column="has_hiv", backbone="random:tiny-text", input_size=0
    )

    assert read_node_info(reply).num_partitions == 1


def test_a_server_cannot_say_how_large_a_network_is_built(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """It would be built before its weights are seen not to fit: gigabytes for a number in a run-config."""
    name = "random:timm:vit_tiny_patch16_224"
    node = {**node, "allowed-backbones": name}
    run: dict[str, Any] = {"backbone": name, "input_size": 0, "backbone_arguments": "img_size=32,depth=2"}

    assert ask(node, **run).error.reason == f"RefusedByPolicy: {REFUSED}" and "depth=2,img_size=32" in caplog.text
    assert not ask({**node, "allowed-backbones": f"resnet18,{name}[img_size=32, depth=2]"}, **run).has_error()
    assert ask({**node, "allowed-backbones": f"{name}[img_size=32]"}, **run).has_error()
    with pytest.raises(ConfigError, match=r"node-config: allowed-backbones: must be arguments .*'checkpoint_path'"):
        NodeConfig.from_node_config({**node, "allowed-backbones": f"{name}[checkpoint_path=x]"})


def test_an_allowed_name_is_that_name_only(node: Node) -> None:
    node = {**node, "allowed-backbones": "timm:hf-hub:MahmoodLab/UNI"}

    for other in ("timm:hf-hub:MahmoodLab/UNI@evil", "timm:hf-hub:mahmoodlab/uni", "random:timm:hf-hub:MahmoodLab/UNI"):
        assert ask(node, backbone=other, input_size=0).error.reason == f"RefusedByPolicy: {REFUSED}"
    assert not ask(node, backbone="timm:hf-hub:MahmoodLab/UNI", input_size=0).has_error()


@pytest.mark.extended  # timm takes seconds to import
def test_an_owners_folder_is_read_and_no_hub(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an owner names a folder, a run's name of the hub leads to it; a pickle in it that is more is refused."""
    pytest.importorskip("timm")
    from fedstats_app.backbones import hub

    monkeypatch.setattr(hub, "require_reachable", lambda url: pytest.fail("the folder has it all"))
    folder = tmp_path / "uni"
    folder.mkdir()
    small = '{"img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 3}'
    (folder / "config.json").write_text(f'{{"architecture": "vit_tiny_patch16_224", "model_args": {small}}}')
    torch.save(torch.nn.Linear(2, 2), folder / "pytorch_model.bin")
    name = "timm:hf-hub:MahmoodLab/UNI"
    node = {**node, "allowed-backbones": name, "backbone-weights": str(folder)}

    reply = ask(node, "query.statistics", statistics_of("ant", "bee"), backbone=name, input_size=0)
    assert reply.error.reason == "WeightsError: the reason is in the log of this node"
    import timm

    arguments = {"img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 3}
    torch.save(
        timm.create_model("vit_tiny_patch16_224", num_classes=0, **arguments).state_dict(), folder / "pytorch_model.bin"
    )
    assert not ask(node, "query.statistics", statistics_of("ant", "bee"), backbone=name, input_size=0).has_error()
