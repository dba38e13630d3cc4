"""ClassMixtures: a mixture of Gaussians for every class of one client, which is what CCVR and FedPFT send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Covariance = Literal["full", "diagonal", "spherical"]
COVARIANCES: tuple[Covariance, ...] = get_args(Covariance)


@dataclass(frozen=True, eq=False)
class ClassMixtures:
    """The features of a client's classes as mixtures of J Gaussians; m classes, features of dimension d.

    Attributes
    ----------
    class_ids : Tensor
        (m,) int64, ascending.
    counts : Tensor
        (m,) int64, at least 1: samples behind each mixture.
    weights : Tensor
        (m, J) float64, at least 0; each row adds up to 1.
    means : Tensor
        (m, J, d) float64.
    covariances : Tensor
        float64: (m, J, d, d) full, symmetric; (m, J, d) diagonal; (m, J) spherical: the variance of every feature.

    Raises
    ------
    ValueError
        If shapes disagree, or ids or counts are not as above.
    """

    class_ids: Tensor
    counts: Tensor
    weights: Tensor
    means: Tensor
    covariances: Tensor

    def __post_init__(self) -> None:
        """Refuse shapes that do not fit together."""
        if self.means.ndim != 3:
            raise ValueError(f"means must be (m, J, d), got {tuple(self.means.shape)}")
        m, components, dim = self.means.shape
        expected = {"class_ids": (m,), "counts": (m,), "weights": (m, components)}
        for name, shape in expected.items():
            if tuple(getattr(self, name).shape) != shape:
                raise ValueError(f"{name} must be {shape}, got {tuple(getattr(self, name).shape)}")
        if tuple(self.covariances.shape) not in {(m, components, dim, dim), (m, components, dim), (m, components)}:
            raise ValueError(
                f"covariances must be {(m, components, dim, dim)}, {(m, components, dim)} or {(m, components)}, "
                f"got {tuple(self.covariances.shape)}"
            )
        if m and (bool((self.class_ids.diff() <= 0).any()) or int(self.counts.min()) < 1):
            raise ValueError("class_ids must ascend and counts be at least 1")

    @property
    def covariance(self) -> Covariance:
        """Of which kind the covariances are."""
        kinds: dict[int, Covariance] = {4: "full", 3: "diagonal", 2: "spherical"}
        return kinds[self.covariances.ndim]

    @property
    def feature_dim(self) -> int:
        """Feature dimension d."""
        return int(self.means.shape[2])

    def sent_as(self, dtype: torch.dtype) -> ClassMixtures:
        """Round weights, means and covariances to the precision in which they travel.

        Parameters
        ----------
        dtype : torch.dtype
            float16 (FedPFT's), float32 or float64. Values beyond float16's largest, 65,504, are clamped to it.
        """
        most = torch.finfo(dtype).max

        def travelled(values: Tensor) -> Tensor:
            return values.clamp(-most, most).to(dtype).to(torch.float64)

        return ClassMixtures(
            self.class_ids, self.counts, travelled(self.weights), travelled(self.means), travelled(self.covariances)
        )

    def bytes_as(self, dtype: torch.dtype) -> int:
        """Return the bytes of the arrays: ids and counts in 8 each, of a full covariance one triangle."""
        rows, components, dim = self.means.shape
        in_covariance = {"full": dim * (dim + 1) // 2, "diagonal": dim, "spherical": 1}[self.covariance]
        numbers = rows * components * (1 + dim + in_covariance)
        return 16 * rows + dtype.itemsize * numbers
