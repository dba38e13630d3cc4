"""A node that runs any app is named where everybody looks."""

from pathlib import Path

import pytest

from fedstats_app.testing import FIRST_NODE_ID
from tests.support.simulation import nodes_of, read_json, simulate


def test_it_is_in_the_output_and_in_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unprotected = (0, 2)
    nodes = nodes_of(tmp_path, "abc", ("ant", "bee"))
    nodes = [{**node, "any-app": True} if index in unprotected else node for index, node in enumerate(nodes)]
    policy = read_json(simulate(tmp_path, node_configs=nodes, method="fedncm"), "results.json")["policy"]
    ids = [str(FIRST_NODE_ID + index) for index in unprotected]
    assert policy["nodes_running_any_app"] == ids
    said = [line for line in capsys.readouterr().out.splitlines() if "runs ANY app" in line]
    assert [line.split()[2] for line in said] == ids
