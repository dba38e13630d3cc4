"""Heads of class sums and second moments with noise (:mod:`fedstats_app.statistics.noisy_words`).

Computations on noisy sums cost no further privacy. The constants were chosen and measured in research/noise.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import LinearHead, SolveReport
from fedstats_app.statistics.accumulation import normalize_rows


@dataclass(frozen=True, eq=False)
class NoisyStatistics:
    """Noisy sums over the data of all clients.

    Attributes
    ----------
    mean : Tensor
        (d,) float64, of unit features.
    sums : Tensor
        (C, d) float64, by class, of unit deviations from that mean.
    moments : Tensor or None
        (d, d) float64, symmetric, of the same; noise may make eigenvalues negative.
    edge : float
        Largest eigenvalue of the noise in ``moments`` alone: the semicircle's, sqrt(2 d) times its deviation.
    num_samples : int
        As declared.
    """

    mean: Tensor
    sums: Tensor
    moments: Tensor | None
    edge: float
    num_samples: int

    def ncm(self) -> LinearHead:
        """Return FedNCM's head on unit features: the class sums, scaled to length 1."""
        return self._head(self.sums, SolveReport("none (noise)"))

    def ridge(self, ridge: float = 0.5, floor: float = 0.05) -> LinearHead:
        """Return Fed3R's head on unit features: S (G + ridge)^-1 with the spectrum of G cleaned, scaled to length 1.

        Parameters
        ----------
        ridge, floor : float
            Sum added to every eigenvalue, and the least eigenvalue, in edges.

        Raises
        ------
        ValueError
            Without second moments.
        """
        values, vectors = self._spectrum(floor)
        added = ridge * self.edge
        weight = ((self.sums @ vectors) / (values + added)) @ vectors.T
        report = SolveReport(f"lambda {added:.4g} (of the noise)", {"ridge_lambda": added}, added)
        return self._head(weight, report)

    def gaussian(self, ridge: float = 0.5, floor: float = 0.05) -> LinearHead:
        """Return FedCGS's head on unit features: w_c = Sigma^-1 mu_c, and half of b_c = -mu_c^T Sigma^-1 mu_c / 2.

        Sigma is the cleaned G without the class means' part, over N. All classes count as N / C samples, since class
        counts are not released: mu_c of a larger class is too long, which matters less with half of the bias.
        Parameters and errors as :meth:`ridge`.
        """
        values, vectors = self._spectrum(floor)
        means = (self.sums @ vectors) * (len(self.sums) / self.num_samples)
        between = means.T @ means * (self.num_samples / len(means))
        within, turned = torch.linalg.eigh(torch.diag(values) - between)
        added = ridge * self.edge
        scatter = (within.clamp(min=floor * self.edge) + added) / self.num_samples
        weight = ((means @ turned) / scatter) @ turned.T
        bias = -(weight * means).sum(dim=1) / 4
        weight = weight @ vectors.T
        # As in _head, but the bias keeps its part: of the square of a deviation's length the mean is 1 - |m|^2.
        length = (1 - self.mean.square().sum()).clamp(min=0).sqrt()
        report = SolveReport(f"ridge {added:.4g} (of the noise)", ridge_effective=added)
        return LinearHead(weight, bias * length - weight @ self.mean, report=report)

    def _spectrum(self, floor: float) -> tuple[Tensor, Tensor]:
        """Return (d,) eigenvalues, cleaned of noise, and (d, d) eigenvectors of the second moments.

        Noise lifts an eigenvalue e' above its edge to about sqrt(e'^2 + edge^2), which is undone. Those below are
        lost in noise: the rest of the trace, which is the number of samples, is spread evenly over them.
        """
        if self.moments is None:
            raise ValueError("this head needs second moments, got class sums alone")
        values, vectors = torch.linalg.eigh(self.moments)
        seen = values > self.edge
        cleaned = torch.where(seen, (values.square() - self.edge**2).clamp(min=0).sqrt(), 0.0)
        left = (self.num_samples - float(cleaned.sum())) / max(int((~seen).sum()), 1)
        return cleaned.clamp(min=max(left, floor * self.edge)), vectors

    def _head(self, weight: Tensor, report: SolveReport) -> LinearHead:
        # W (u - m) is W u - W m, and the length of u - m changes no prediction: a linear head on unit features.
        rows, _ = normalize_rows(weight)
        return LinearHead(rows, -rows @ self.mean, report=report)
