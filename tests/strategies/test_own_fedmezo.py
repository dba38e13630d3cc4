"""FedMeZO as a Strategy of another app: started as the closed forms are, nodes with features of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from torch import Tensor

from fedstats_app.client.own_replica import mezo_answer
from fedstats_app.strategies import FedMeZO
from fedstats_app.testing import LocalGrid
from fedstats_app.wire import guard

DIM, CLASSES = 6, 3
Data = tuple[Tensor, Tensor]


def separable(seed: int, n: int = 60) -> Data:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    return torch.eye(CLASSES, DIM)[labels] + 0.3 * torch.randn(n, DIM, generator=generator), labels


def nodes(tmp_path: Path, data: list[Data]) -> LocalGrid:
    app = ClientApp(mods=[guard])

    @app.train("mezo")
    def mezo(msg: Message, context: Context) -> Message:
        number = int(context.node_config["number"])
        return mezo_answer(msg, *data[number], tmp_path / str(number))

    return LocalGrid(app, [{"number": number} for number in range(len(data))], {})


def start() -> ArrayRecord:
    return ArrayRecord({"weight": torch.zeros(CLASSES, DIM), "bias": torch.zeros(CLASSES)})


def accuracy_of(test: Data) -> Callable[[int, ArrayRecord], MetricRecord]:
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        layer = torch.nn.Linear(DIM, CLASSES)
        layer.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": float((layer(test[0]).argmax(1) == test[1]).double().mean())})

    return evaluate


def test_it_tunes_a_head_and_gives_it_as_its_sisters_do(tmp_path: Path) -> None:
    strategy = FedMeZO(CLASSES, num_z=4, learning_rate=0.5, min_clients=3, settle_seconds=0.01)
    grid = nodes(tmp_path, [separable(seed) for seed in range(3)])
    result = strategy.start(grid, start(), num_rounds=60, evaluate_fn=accuracy_of(separable(9)))
    assert set(result.arrays) == {"weight", "bias"}
    scores = result.evaluate_metrics_serverapp
    assert len(scores) == len(strategy.log) == 60
    assert float(scores[60]["accuracy"]) > 0.9  # type: ignore[arg-type]
    # The model is the server's to give from here on.
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_split_does_not_matter(tmp_path: Path) -> None:
    features, labels = separable(1)
    heads = []
    for folder, parts in (("two", 2), ("five", 5)):
        data = [(features[part::parts], labels[part::parts]) for part in range(parts)]
        strategy = FedMeZO(CLASSES, learning_rate=0.3, min_clients=parts, settle_seconds=0.01)
        result = strategy.start(nodes(tmp_path / folder, data), start(), num_rounds=5)
        heads.append(result.arrays.to_torch_state_dict()["weight"])
    assert torch.allclose(heads[0], heads[1], atol=1e-5) and heads[0].abs().max() > 0.01


def test_what_is_no_head_is_refused(tmp_path: Path) -> None:
    grid = nodes(tmp_path, [separable(0), separable(1)])
    strategy = FedMeZO(CLASSES, settle_seconds=0.01)
    with pytest.raises(ValueError, match=r"initial_arrays: must be weight \(C, d\) and bias \(C,\), got nothing"):
        strategy.start(grid)
    with pytest.raises(ValueError, match="got weight"):
        strategy.start(grid, ArrayRecord({"weight": torch.zeros(CLASSES, DIM)}))
    with pytest.raises(ValueError, match=r"head\.weight"):
        FedMeZO(CLASSES + 1, settle_seconds=0.01).start(grid, start())


def test_features_of_another_dimension_are_the_nodes_failure(tmp_path: Path) -> None:
    narrow = (torch.rand(6, DIM - 1), torch.arange(6) % CLASSES)
    strategy = FedMeZO(CLASSES, learning_rate=0.1, min_clients=1, settle_seconds=0.01)
    strategy.start(nodes(tmp_path, [separable(0), narrow]), start(), num_rounds=1)
    assert strategy._last is not None
    ((reason,),) = (list(strategy._last.asked.failures.values()),)
    assert "head.weight" in reason
