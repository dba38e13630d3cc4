"""A federation for the baselines: five clients, four classes of which the clients have some."""

import pytest
import torch
from torch import Tensor

from research.baselines import ClassMixtures, class_gaussians

Clients = dict[int, tuple[Tensor, Tensor]]


@pytest.fixture
def clients() -> Clients:
    generator = torch.Generator().manual_seed(3)
    centres = 4 * torch.randn(4, 6, generator=generator)
    found = {}
    for client, classes in enumerate([(0, 1), (1, 2, 3), (0,), (2, 3), (3,)]):
        labels = torch.tensor(classes).repeat_interleave(torch.tensor([9, 14, 4][: len(classes)]))
        found[client] = (centres[labels] + torch.randn(len(labels), 6, generator=generator), labels)
    return found


@pytest.fixture
def gaussians(clients: Clients) -> dict[int, ClassMixtures]:
    return {client: class_gaussians(*samples) for client, samples in clients.items()}
