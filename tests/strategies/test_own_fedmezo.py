"""FedMeZO as a Strategy of another app: any model, nodes with inputs of their own."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedstats_app.client.own_replica import mezo_answer
from fedstats_app.strategies import FedMeZO
from fedstats_app.testing import LocalGrid
from fedstats_app.wire import guard

DIM, CLASSES = 6, 3
FAST = {"settle_seconds": 0.0, "min_clients": 1}
Data = tuple[Tensor, Tensor]


def separable(seed: int, n: int = 60) -> Data:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    return torch.eye(CLASSES, DIM)[labels] + 0.3 * torch.randn(n, DIM, generator=generator), labels


def nodes(tmp_path: Path, data: list[Data], make: Callable[[], nn.Module] | None = None) -> LocalGrid:
    app = ClientApp(mods=[guard])

    @app.train("mezo")
    def mezo(msg: Message, context: Context) -> Message:
        number = int(context.node_config["number"])
        return mezo_answer(msg, *data[number], tmp_path / str(number), make() if make else None)

    return LocalGrid(app, [{"number": number} for number in range(len(data))], {})


def zeros() -> ArrayRecord:
    return ArrayRecord({"weight": torch.zeros(CLASSES, DIM), "bias": torch.zeros(CLASSES)})


def network() -> nn.Module:
    """Buffers, whole numbers among them, a frozen layer, other weights every time."""
    model = nn.Sequential(nn.Linear(DIM, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))
    model[0].requires_grad_(False)
    return model


def accuracy(model: nn.Module, arrays: ArrayRecord) -> float:
    model.load_state_dict(arrays.to_torch_state_dict())
    inputs, labels = separable(9)
    return float((model.eval()(inputs).argmax(1) == labels).double().mean())


@pytest.mark.parametrize(
    ("make", "options"),
    [(None, {}), (network, {"tune": "names:3.*", "directions": "gaussian", "weighting": "uniform", "batch_size": 30})],
)
def test_it_tunes_any_model_and_gives_its_state(
    tmp_path: Path, make: Callable[[], nn.Module] | None, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model = make() if make else None
    strategy = FedMeZO(CLASSES, model, num_z=4, learning_rate=1.5, **FAST, **options)
    strategy.summary()
    assert strategy.log == []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": accuracy(make() if make else nn.Linear(DIM, CLASSES), arrays)})

    grid = nodes(tmp_path, [separable(seed) for seed in range(2)] + [separable(2, n=2)], make)
    result = strategy.start(grid, None if model else zeros(), num_rounds=20, evaluate_fn=evaluate)
    scores = result.evaluate_metrics_serverapp
    assert scores is not None and len(scores) == len(strategy.log) == 20
    assert float(scores[20]["accuracy"]) > 0.8  # type: ignore[arg-type]
    # No owner's policy applies: two samples are enough.
    assert len(strategy.outcome.num_examples) == 3
    if model is not None:
        assert torch.equal(model.state_dict()["3.weight"], result.arrays.to_torch_state_dict()["3.weight"])
    # The model is the server's to give from here on.
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    strategy.start(grid, num_rounds=2)
    assert len(strategy.log) == 22


def test_rounds_can_be_played_by_hand(tmp_path: Path) -> None:
    strategy, grid = FedMeZO(CLASSES, **FAST), nodes(tmp_path, [separable(0), separable(1)])
    for server_round in (1, 2):
        messages = strategy.configure_train(server_round, zeros(), ConfigRecord(), grid)
        _, metrics = strategy.aggregate_train(server_round, grid.send_and_receive(messages))
        assert metrics == MetricRecord({"num-clients": 2, "num-failed": 0})
    other = FedMeZO(CLASSES, **FAST)
    other.start(grid, zeros(), num_rounds=2)
    assert strategy.log == other.log and any(strategy.log[1].steps)


def test_the_split_does_not_matter(tmp_path: Path) -> None:
    features, labels = separable(1)
    heads = []
    for parts in (2, 5):
        data = [(features[part::parts], labels[part::parts]) for part in range(parts)]
        strategy = FedMeZO(CLASSES, learning_rate=0.3, clip=0.0, num_clients=parts)
        result = strategy.start(nodes(tmp_path / str(parts), data), zeros(), num_rounds=5)
        heads.append(result.arrays.to_torch_state_dict()["weight"])
    assert torch.allclose(heads[0], heads[1], atol=1e-5) and heads[0].abs().max() > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_z": 0}, r"num_directions must lie in \[1, 1024\]"),
        ({"tune": "heads"}, "must be one of head, full, bias, norm, or names"),
        ({"model": network(), "tune": "names:9.*"}, r"no parameter is called '9\.\*'"),
        ({"max_share": 0.0}, "max_share must lie in"),
        ({"learning_rate": math.inf}, "learning_rate must be positive and finite"),
        ({"fraction_train": 2.0}, "fraction must lie in"),
    ],
)
def test_wrong_arguments_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedMeZO(CLASSES, **options)


def test_arrays_of_another_model_are_refused(tmp_path: Path) -> None:
    grid = nodes(tmp_path, [separable(0)])
    with pytest.raises(ValueError, match=r"initial_arrays: must be weight \(C, d\) and bias \(C,\), got nothing"):
        FedMeZO(CLASSES, **FAST).start(grid)
    with pytest.raises(ValueError, match="size mismatch for weight"):
        FedMeZO(CLASSES + 1, **FAST).start(grid, zeros())
