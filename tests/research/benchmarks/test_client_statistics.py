import torch

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.statistics import FeatureStatistics
from research.benchmarks import client_statistics


def test_the_statistics_that_are_timed_are_those_of_all_batches() -> None:
    backbone = load_backbone("tiny", weights="random", input_size=16, batch_size=4, device="cpu")
    batches = [torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    labels = torch.arange(12) % 5
    made = client_statistics._statistics(backbone, batches, labels, 5, client_statistics.GRAM).summed()
    features = torch.cat([backbone.forward_batch(batch) for batch in batches])
    expected = FeatureStatistics.from_features(features, labels, 5)
    assert torch.equal(made.class_counts, expected.class_counts)
    assert torch.allclose(made.class_sums, expected.class_sums, rtol=1e-12)
    assert torch.allclose(made.gram, expected.gram, rtol=1e-12)
