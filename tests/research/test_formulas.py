import pytest

from research.formulas import TableSizes, formula_bytes, verdict
from tests.support.golden import published_costs

_DIM = {"SqueezeNet": 512, "MobileNetV2": 1280, "ViT-B/16": 768}
# Rows M and clients K behind the published numbers; M is the paper's (CIFAR-100) or its FedNCM bytes / 4d.
_ROWS_AND_CLIENTS = {"CIFAR-100": (2870, 100), "ImageNet-R": (3470, 100), "CUB200": (2353, 100), "Cars": (2634, 100)}
_ROWS_AND_CLIENTS |= {"iNat-120K": (54590, 9275), "DomainNet-10": (60, 6)}
_METHODS = {"FedNCM=FedCOF": ("fedncm", "fedcof"), "FedNCM": ("fedncm",), "Fed3R": ("fed3r",)}
_METHODS |= {"CCVR=Oracle": ("ccvr",), "FedCOF 2 means": ("fedcof",), "FedCOF 10 means": ("fedcof",)}
_MEANS_PER_CLASS = {"FedCOF 2 means": 2, "FedCOF 10 means": 10}
_VERDICTS = {"yes": "rounded", "truncated": "truncated", "NO": "wrong"}


def test_formulas_give_every_number_of_the_papers_tables() -> None:
    rows = [row for row in published_costs() if row["what"] in _METHODS]
    assert len(rows) >= 45
    for row in rows:
        num_rows, num_clients = _ROWS_AND_CLIENTS[row["dataset"]]
        for method in _METHODS[row["what"]]:
            means, dim = _MEANS_PER_CLASS.get(row["what"], 1), _DIM[row["backbone"]]
            # The number of classes is in none of these formulas.
            sizes = TableSizes(rows=num_rows * means, clients=num_clients, classes=100, feature_dim=dim)
            assert f"{formula_bytes(method, sizes) / 1e6:.4f}" == row["computed_MB"], row


def test_the_verdict_on_every_printed_cell_is_the_golden_one() -> None:
    rows = published_costs()
    assert len(rows) > 60
    for row in rows:
        computed = round(1e6 * float(row["computed_MB"]))
        assert verdict(computed, row["reported_MB"]) == _VERDICTS[row["within_rounding"]], row


def test_fedcgs_counts_the_parameters_of_four_methods() -> None:
    # Of a client, with 10 classes and ResNet-18, whose head has a bias.
    sizes = TableSizes(rows=17, clients=3, classes=10, feature_dim=512, components=10, parameters=11_176_512 + 10 * 513)
    assert formula_bytes("fedcgs", sizes) == 4 * 3 * 267_274 and formula_bytes("fedpft", sizes) == 4 * 3 * 102_500
    assert formula_bytes("fedavg", sizes) == 2 * 4 * 3 * 11_181_642  # there and back
    assert formula_bytes("one-shot-fedavg", sizes) == formula_bytes("ensemble", sizes) == 4 * 3 * 5_130


def test_prompt_tuning_counts_the_pool_of_every_round() -> None:
    # Of 120 rounds of 10 clients: classes, prompts of all rounds, megabytes.
    cells = {"CIFAR-100": (100, 1777, 846.459), "ImageNet-R": (200, 5205, 1794.355)}
    cells |= {"CUB200": (200, 4736, 1765.540), "Cars": (196, 4736, 1736.049)}
    published = {(row["what"], row["dataset"]): row["computed_MB"] for row in published_costs()}
    for name, (classes, prompts, megabytes) in cells.items():
        for method, number in (("PFPT", prompts), ("FedAvg-PT", 20 * 120)):
            sizes = TableSizes(clients=10, classes=classes, feature_dim=768, rounds=120, prompts=number)
            computed = formula_bytes("pfpt", sizes) / 1e6
            assert f"{computed:.4f}" == published[method, name]
            assert method == "FedAvg-PT" or round(computed, 3) == megabytes


def test_slora_and_fedmezo() -> None:
    sizes = TableSizes(clients=10, rounds=50, parameters=1000, adapter_parameters=30, directions=2)
    assert formula_bytes("lora", sizes) == 2 * 4 * 10 * 50 * 30
    assert formula_bytes("slora", sizes) == 4 * 10 * (10 * 100 + 40 * 30)  # equation 7: one way
    assert formula_bytes("fedmezo", sizes) == 50 * (10 + 2 * 10 * 2)
    # The thesis's table 4.1: SST-2 in 2,621 rounds with one direction.
    assert formula_bytes("fedmezo", TableSizes(clients=10, rounds=2621)) == 78_630


def test_the_thesis_counts_full_fine_tuning_of_one_base_in_every_cell() -> None:
    # Its equation 9 without a share of clients, rounds of table A.1, gigabytes of table 3.2.
    cells = [(10, 3000, 1803.71), (10, 200, 120.25), (10, 1000, 601.24), (10, 500, 300.62), (102, 3000, 1916.76)]
    cells += [(102, 250, 159.73), (200, 3000, 2037.18), (200, 1000, 679.06), (196, 3500, 2370.97), (196, 1000, 677.42)]
    for classes, rounds, gigabytes in [*cells, (10, 3500, 2104.32)]:
        sizes = TableSizes(clients=100, rounds=rounds, parameters=746_427 + 512 * classes)
        assert formula_bytes("fedavg", sizes) / 1e9 == pytest.approx(gigabytes, rel=1e-5, abs=0.006), (classes, rounds)
