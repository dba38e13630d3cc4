"""Features drawn from mixtures at the server: the same for a seed, whatever the order in which clients answered."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedstats_app.training.samples import generator
from research.baselines.mixtures import ClassMixtures


def drawn_samples(mixtures: ClassMixtures, per_class: Tensor, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Draw features of every class.

    Parameters
    ----------
    mixtures : ClassMixtures
        To draw from. A covariance's negative eigenvalues, which rounding in transit makes, count as 0.
    per_class : Tensor
        (m,) int64, how many of each of its classes.
    key : tuple of int
        Each at least 0; with the class it decides the draw.

    Returns
    -------
    features : Tensor
        (sum of per_class, d) float32.
    labels : Tensor
        As many class ids, int64, ascending.
    """
    blocks, labels = [], per_class.new_zeros(0)
    for row, class_id in enumerate(mixtures.class_ids.tolist()):
        random = generator(key, class_id)
        weights = mixtures.weights[row].clamp(min=0.0).numpy()
        # Rounded to what travelled they do not add up to 1 exactly.
        counts = random.multinomial(int(per_class[row]), weights / weights.sum())
        for component, count in enumerate(counts.tolist()):
            noise = torch.from_numpy(random.standard_normal((count, mixtures.feature_dim)))
            spread = _spread(noise, mixtures.covariances[row, component])
            blocks.append((mixtures.means[row, component] + spread).to(torch.float32))
        labels = torch.cat([labels, labels.new_full((int(counts.sum()),), class_id)])
    empty = torch.zeros(0, mixtures.feature_dim)
    return (torch.cat(blocks) if blocks else empty), labels


def drawn_samples_of_all(clients: Mapping[int, ClassMixtures], seed: int) -> tuple[Tensor, Tensor]:
    """Draw from every client's mixtures as many features of a class as the client has samples of it (FedPFT).

    Parameters
    ----------
    clients : mapping
        From each client's number, which its draws depend on, to its mixtures; at least one.
    seed : int
        At least 0.

    Returns
    -------
    features, labels : Tensor
        As :func:`drawn_samples`, in the order of the clients' numbers.

    Raises
    ------
    ValueError
        If there are no clients.
    """
    if not clients:
        raise ValueError("clients: there must be at least one, got none")
    drawn = [drawn_samples(mixtures, mixtures.counts, (seed, client)) for client, mixtures in sorted(clients.items())]
    return torch.cat([features for features, _ in drawn]), torch.cat([labels for _, labels in drawn])


def _spread(noise: Tensor, covariance: Tensor) -> Tensor:
    """Return (n, d) standard normal noise with a covariance (d, d), (d,) or ()."""
    if covariance.ndim < 2:
        diagonal: Tensor = noise * covariance.clamp(min=0.0).sqrt()
        return diagonal
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    spread: Tensor = noise @ (vectors * values.clamp(min=0.0).sqrt()).T
    return spread
