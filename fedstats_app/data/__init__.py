"""Sources of samples, their partition over clients, and the cache of their features.

It may import options; importing it does not import torch.
"""

from fedstats_app.data.dataset import Dataset, DatasetError, Sample, UnreadableSampleError, to_rgb
from fedstats_app.data.feature_cache import FeatureCache, default_cache_root
from fedstats_app.data.loading import load_dataset
from fedstats_app.data.partition import PARTITIONERS, partition

__all__ = [
    "PARTITIONERS",
    "Dataset",
    "DatasetError",
    "FeatureCache",
    "Sample",
    "UnreadableSampleError",
    "default_cache_root",
    "load_dataset",
    "partition",
    "to_rgb",
]
