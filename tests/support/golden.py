"""The golden federations as values of the library."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedstats_app.statistics import ClassMeanRows, FeatureStatistics, StatisticsSpec

GOLDEN = Path(__file__).parent.parent / "golden"
FEDERATIONS = sorted(path.stem for path in GOLDEN.glob("fed_*.npz"))


@cache
def load(name: str) -> dict[str, np.ndarray]:
    """Return the arrays of one golden file."""
    with np.load(GOLDEN / f"{name}.npz") as stored:
        return {key: stored[key] for key in stored.files}


def published_costs() -> list[dict[str, str]]:
    """Return the rows of the papers' tables of bytes sent."""
    return list(csv.DictReader((GOLDEN / "comm_costs.csv").read_text().splitlines()))


def tensor(values: np.ndarray) -> Tensor:
    """Return integers as int64 and floats as float64, which hold every golden input exactly."""
    kind = torch.int64 if values.dtype.kind in "iu" else torch.float64
    return torch.from_numpy(np.ascontiguousarray(values)).to(kind)


@dataclass(frozen=True)
class Federation:
    """One golden federation: features, labels and clients of all samples, and the expected arrays."""

    name: str

    def __getitem__(self, key: str) -> np.ndarray:
        return load(self.name)[key]

    def __contains__(self, key: str) -> bool:
        return key in load(self.name)

    @property
    def num_classes(self) -> int:
        return int(self["C"])

    @property
    def num_clients(self) -> int:
        return int(self["K"])

    @property
    def features(self) -> Tensor:
        """(N, d) float32, as a backbone gives them."""
        return torch.from_numpy(self["X"])

    @property
    def labels(self) -> Tensor:
        return tensor(self["labels"])

    def client(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one client's features and labels."""
        mine = torch.from_numpy(self["clients"] == index)
        return self.features[mine], self.labels[mine]

    def statistics(self, clients: list[int] | None = None) -> FeatureStatistics:
        """Return the sum of the clients' statistics."""
        total = FeatureStatistics.zeros(self.num_classes, int(self["d"]))
        for index in range(self.num_clients) if clients is None else clients:
            total = total + FeatureStatistics.from_features(*self.client(index), self.num_classes)
        return total

    def rows(self, clients: list[int] | None = None) -> ClassMeanRows:
        """Return the stacked rows of the clients, one mean per class."""
        chosen = range(self.num_clients) if clients is None else clients
        return ClassMeanRows.concatenate(
            [StatisticsSpec().from_features(*self.client(index), self.num_classes).rows for index in chosen]
        )

    def subset_rows(self) -> ClassMeanRows:
        """Return rows of several means per class, with the golden choice of samples for each."""
        keys = np.stack([self["clients"], self["labels"], self["mm_subset"]], axis=1).astype(np.int64)
        groups, row_of_sample = np.unique(keys, axis=0, return_inverse=True)
        sums = torch.zeros(len(groups), int(self["d"]), dtype=torch.float64)
        sums.index_add_(0, torch.from_numpy(row_of_sample.reshape(-1)), self.features.to(torch.float64))
        counts = torch.from_numpy(np.bincount(row_of_sample.reshape(-1)).astype(np.int64))
        return ClassMeanRows(tensor(groups[:, 1]), counts, num_classes=self.num_classes, class_sums=sums)
