"""The page on foundation backbones: its node answers its run, and no other."""

import shlex
from dataclasses import replace

from flwr.common.config import parse_config_args

from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.settings.of_message import refused_choice
from tests.docs.markdown import DOCS, blocks

PAGE = DOCS / "backbones.md"


def option(command: str, name: str) -> dict[str, object]:
    lines = [line for block in blocks(PAGE, "bash") for line in block.code.splitlines()]
    [line] = [one for one in lines if one.startswith(command) and "UNI" in one]
    words = shlex.split(line)
    return dict(parse_config_args([words[words.index(name) + 1]]))


def test_the_node_on_the_page_answers_the_run_on_the_page() -> None:
    run = AppConfig.from_run_config(option("flwr run", "-c"))
    node = NodeConfig.from_node_config(option("fedstats node", "--node-config"))
    assert node.is_owners and refused_choice(run, node) == ""
    other = replace(run, backbone=replace(run.backbone, backbone_arguments="depth=99"))
    assert "UNI[depth=99]" in refused_choice(other, node)
    assert "allowed-backbones" in refused_choice(AppConfig.of(backbone="timm:hf-hub:MahmoodLab/UNI2-h"), node)
