from tests.training.conftest import network as network
