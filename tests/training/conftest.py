import pytest
from torch import nn

from tests.support.networks import small_network


@pytest.fixture
def network() -> nn.Sequential:
    return small_network()
