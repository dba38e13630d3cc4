"""The page about apps of your own: both run, and give the head of all data together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from safetensors.torch import load_file

from fedstats_app.heads import solve_ridge
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.strategies import Fed3R
from fedstats_app.testing import LocalGrid
from tests.docs.markdown import DOCS, REPOSITORY, blocks
from tests.docs.test_documents import run

PAGE = DOCS / "own-client-app.md"
EXAMPLE = REPOSITORY / "examples" / "own-flower-app" / "own_app"


def app_of(code: str, where: str) -> Any:
    namespace: dict[str, Any] = {}
    run(code, where, namespace)
    return namespace["app"]


def example(file: str) -> Any:
    return app_of((EXAMPLE / file).read_text(), file)


def test_both_apps_give_the_head_of_all_data(home: Path, capsys: Any) -> None:
    torch.manual_seed(0)
    features, labels = torch.rand(60, 5), torch.arange(60) % 3
    nodes = []
    for node in range(3):
        file = home / f"{node}.npz"
        np.savez(file, features=features[node::3].numpy(), labels=labels[node::3].flip(0).numpy())
        nodes.append({"features": str(file)})
    grid = LocalGrid(example("client_app.py"), nodes, {})
    example("server_app.py")(grid, Context(1, 1, {}, RecordDict(), {}))
    *outcomes, last = capsys.readouterr().out.splitlines()
    assert outcomes == ["merged 20 "] * 3

    head = load_file(home / "head.safetensors")
    together = torch.cat([labels[node::3].flip(0) for node in range(3)])
    samples = torch.cat([features[node::3] for node in range(3)])
    expected = solve_ridge(FeatureStatistics.from_features(samples, together, 3), ridge_lambda="auto")
    assert torch.allclose(head["weight"], expected.weight, atol=1e-6)
    accuracy = float((expected.predict(samples) == together).double().mean())
    assert last == f"{expected} is in {home / 'head.safetensors'}; accuracy {accuracy:.3f}"

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if not arrays:  # before the first round there is no head
            return None
        last_layer = torch.nn.Linear(5, 3)
        last_layer.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": float((last_layer(features).argmax(dim=1) == labels).double().mean())})

    strategy = Fed3R(num_classes=3, ridge_lambda="auto", min_clients=2, settle_seconds=0.0)
    metrics = strategy.start(grid, evaluate_fn=evaluate).evaluate_metrics_serverapp
    assert metrics is not None
    assert metrics[1]["accuracy"] == float((expected.predict(features) == labels).double().mean())

    grid = LocalGrid(example("mezo_client_app.py"), nodes, {})
    example("mezo_server_app.py")(grid, Context(1, 1, {}, RecordDict(), {}))
    assert capsys.readouterr().out == "20 ['bias', 'weight']\n"


def test_the_page_about_tests_prints_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    [block] = blocks(DOCS / "testing.md", "python")
    assert run(block.code, "testing.md", {}) == block.output


def test_other_blocks_print_what_they_say() -> None:
    [block] = [block for block in blocks(PAGE, "python") if block.file is None]
    assert run(block.code, PAGE.name, {}) == block.output
