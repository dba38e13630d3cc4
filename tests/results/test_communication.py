import pytest

from fedstats_app.methods import METHODS
from fedstats_app.results.communication import uplink_bytes
from tests.support.golden import published_costs

_DIM = {"SqueezeNet": 512, "MobileNetV2": 1280, "ViT-B/16": 768}
# Rows M and clients K behind the published numbers; M is the paper's (CIFAR-100) or its FedNCM bytes / 4d.
_ROWS_AND_CLIENTS = {
    "CIFAR-100": (2870, 100),
    "ImageNet-R": (3470, 100),
    "CUB200": (2353, 100),
    "Cars": (2634, 100),
    "iNat-120K": (54590, 9275),
    "DomainNet-10": (60, 6),
}
_METHODS = {
    "FedNCM=FedCOF": ("fedncm", "fedcof"),
    "FedNCM": ("fedncm",),
    "Fed3R": ("fed3r",),
    "CCVR=Oracle": ("ccvr", "oracle"),
    "FedCOF 2 means": ("fedcof",),
    "FedCOF 10 means": ("fedcof",),
}
_MEANS_PER_CLASS = {"FedCOF 2 means": 2, "FedCOF 10 means": 10}


def test_formulas_give_every_number_of_the_papers_tables() -> None:
    rows = [row for row in published_costs() if row["what"] in _METHODS]
    assert len(rows) >= 45
    for row in rows:
        num_rows, num_clients = _ROWS_AND_CLIENTS[row["dataset"]]
        for method in _METHODS[row["what"]]:
            computed = uplink_bytes(
                method,
                num_rows=num_rows * _MEANS_PER_CLASS.get(row["what"], 1),
                num_clients=num_clients,
                num_classes=100,  # in none of these formulas
                feature_dim=_DIM[row["backbone"]],
            )
            assert f"{computed / 1e6:.4f}" == row["computed_MB"], row


def test_fedcgs_sends_the_parameters_that_its_paper_counts() -> None:
    # 267,274 numbers a client for 10 classes and ResNet-18, by the paper.
    assert uplink_bytes("fedcgs", num_rows=17, num_clients=3, num_classes=10, feature_dim=512) == 4 * 3 * 267_274


def test_no_client_costs_nothing() -> None:
    for method in (name for name, record in METHODS.items() if record.uplink is not None):
        assert uplink_bytes(method, num_rows=0, num_clients=0, num_classes=10, feature_dim=8) == 0


def test_unknown_methods_and_negative_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no uplink formula for 'fedavg'.*fedncm, fed3r, fedcof, fedcgs"):
        uplink_bytes("fedavg", num_rows=1, num_clients=1, num_classes=1, feature_dim=1)
    with pytest.raises(ValueError, match="num_clients must be at least 0, got -1"):
        uplink_bytes("fed3r", num_rows=1, num_clients=-1, num_classes=1, feature_dim=1)
