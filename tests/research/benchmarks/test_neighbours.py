"""FedRoot's pieces and FedRAN's: with all directions they are one Gram matrix, with few FedRoot's is the nearest."""

import torch

from research.benchmarks import neighbours


def test_the_pieces_of_few_samples_and_of_many() -> None:
    generator = torch.Generator().manual_seed(0)
    steep = torch.diag(0.5 ** torch.arange(6).double())
    clients = [(torch.randn(40, 6, generator=generator).double() @ steep + 2.0, torch.arange(40) % 3) for _ in range(4)]
    sent = neighbours.variants(clients, 3)
    exact = sent.pop("exact Gram").gram
    assert exact is not None
    for statistics in sent.values():  # rank 6, as many as there are features
        assert statistics.gram is not None and torch.allclose(statistics.gram, exact)
    few = neighbours.variants([(features[:4], labels[:4]) for features, labels in clients], 3)
    traces = {name: float(one.gram.trace()) for name, one in few.items() if one.gram is not None}
    assert traces["raw, nothing added (FedRAN)"] < traces["exact Gram"]
    assert abs(traces["about the rows, energy in shape (FedRoot)"] - traces["exact Gram"]) < 1e-9
