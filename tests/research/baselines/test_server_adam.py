import torch
from torch import Tensor

from research.baselines.server_adam import ServerAdam
from tests.support.compare import same_bits

SHAPES = {"head.bias": (3,), "head.weight": (3, 4), "scale": ()}


def draw(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def averages(seed: int, current: dict[str, Tensor]) -> dict[str, Tensor]:
    """What clients send: somewhere near where they started, as nothing depends on how they got there."""
    return {name: current[name] + 0.1 * change for name, change in draw(seed).items()}


def run(adam: ServerAdam, current: dict[str, Tensor], rounds: range) -> dict[str, Tensor]:
    for number in rounds:
        current = adam.step(current, averages(number, current))
    return current


def test_five_steps_are_those_of_torchs_adam_on_the_averaged_change() -> None:
    start = draw(0)
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    optimizer = torch.optim.Adam(parameters.values(), lr=0.01, weight_decay=1e-5)
    for number in range(1, 6):
        before = {name: value.detach().clone() for name, value in parameters.items()}
        for name, value in averages(number, before).items():
            parameters[name].grad = -(value - before[name])
        optimizer.step()
    ended = run(ServerAdam(0.01), start, range(1, 6))
    assert all(same_bits(ended[name], parameters[name].detach()) for name in SHAPES)
