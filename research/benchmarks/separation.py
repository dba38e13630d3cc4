"""Recovery of single samples from their Gram matrix, or from some directions of their scatter.

    python -m research.benchmarks.separation --sites 1x5 10x20 --settings dataset=builtin
    python -m research.benchmarks.separation --heads 2 10 100

A Gram matrix leaves the samples X (n, d) open but for a rotation of their deviations Z from the class means, and the
rotation is found because no feature after a ReLU is negative: from random starts Douglas-Rachford steps go between the
matrices with these rows and this scatter, and those without negative numbers.

Each sample is compared with the reconstruction that is most like it, by the cosine of the deviations. So are as many
samples of the same classes that the site does not have: what a reconstruction has in common with these is the class
and not the sample. The difference is what is given away. And of all images of the data set, the site's among them, the
one nearest to each reconstruction is named.

With ``--heads`` the attacker chooses heads to be scored instead, as many as a node's budget allows. It knows all of a
site's held-out samples but one, and so from each answer the class, of those of the head, that this one is taken for,
and with two classes its margin. Two classes stand for both ways along a direction: drawn, or a principal one of other
data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstats_app.privacy import NodePolicy
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import ClientStatistics, StatisticsSpec
from research.benchmarks.features import config_of, features_of
from research.benchmarks.lines import parser_of, printed

STEPS, RELAXATION, POLISHING = 400, 0.7, 30


@dataclass(frozen=True)
class Separated:
    """Recovered share of a site's samples, in the mean over sites.

    Attributes
    ----------
    site : str
        Classes x samples of each.
    sent : str
        Gram matrix, or directions by a node's default policy.
    rank : float
        Directions that the attacker has.
    samples, others : float
        Cosine of a sample's deviation and the most similar reconstruction's: the site's, and others of its classes.
    given_away : float
        Their difference.
    named : float
        Per cent of the reconstructions to which a sample of the site is nearest, of all that the attacker has.
    """

    site: str
    sent: str
    rank: float
    samples: float
    others: float
    given_away: float
    named: float


def deviations(
    client: ClientStatistics, labels: Tensor, *, starts: int = 1, steps: int = STEPS, seed: int = 0
) -> Tensor:
    """Return the deviations (n, d) from their class means that an attacker takes the samples to have.

    Parameters
    ----------
    client : ClientStatistics
        One row per class, and a Gram matrix or a factor.
    labels : Tensor
        (n,) int64, rising, as the rows' counts tell.
    starts : int
        Random ones, of which that with the least negative numbers at the end counts.
    seed : int
        Draws the starts.
    """
    factor, rows = client.scatter_factor(), client.rows
    if factor is None or not len(factor):
        return torch.zeros(len(labels), rows.feature_dim, dtype=torch.float64)
    scatter, means = factor.scaled(), rows.means.double()[torch.searchsorted(rows.class_ids, labels)]
    generator, found = torch.Generator().manual_seed(seed), []
    for _ in range(starts):
        drawn = torch.randn(len(labels), rows.feature_dim, dtype=torch.float64, generator=generator)
        guess = means + drawn * float(scatter.square().sum() / drawn.numel()) ** 0.5
        for _ in range(STEPS):
            inside = _with_scatter(guess, means, scatter, labels)
            positive = (2.0 * inside - guess).clamp(min=0.0)
            guess = RELAXATION * (guess + positive - inside) + (1.0 - RELAXATION) * inside
        for _ in range(POLISHING):
            inside = _with_scatter(inside.clamp(min=0.0), means, scatter, labels)
        found.append((float(inside.clamp(max=0.0).square().sum()), inside - means))
    return min(found, key=lambda solution: solution[0])[1]


def _with_scatter(guess: Tensor, means: Tensor, scatter: Tensor, labels: Tensor) -> Tensor:
    """Return the nearest samples with these means and A F as deviations, A with orthonormal columns (polar factor)."""
    product = centred(guess - means, labels) @ scatter.T
    values, vectors = torch.linalg.eigh(product.T @ product)
    rotation = (vectors / values.clamp(min=1e-12 * float(values[-1])).sqrt()) @ vectors.T
    found: Tensor = means + product @ rotation @ scatter
    return found


def centred(values: Tensor, labels: Tensor) -> Tensor:
    """Return (n, d) values without the means of their classes."""
    counts = torch.bincount(labels).clamp(min=1).unsqueeze(1)
    sums = values.new_zeros(len(counts), values.shape[1]).index_add_(0, labels, values)
    return values - (sums / counts)[labels]


def likeness(true: Tensor, found: Tensor) -> float:
    """Return the mean cosine of true deviations (m, d) and the most similar of those found (n, d); 0 of nothing."""
    cosines = torch.nn.functional.normalize(true, dim=1) @ torch.nn.functional.normalize(found, dim=1).T
    return float(cosines.amax(dim=1).mean())


def measure(features: Tensor, labels: Tensor, site: str, policy: NodePolicy, *, seeds: int) -> Separated:
    """Attack sites with given numbers of classes and samples of each, drawn anew for every seed.

    Parameters
    ----------
    features, labels : Tensor
        (N, d) not negative, and (N,) int64.
    site : str
        As ``3x20``.
    policy : NodePolicy
        Of the sites.
    seeds : int
        How many, from 0.
    """
    num_classes, per_class = map(int, site.split("x"))
    found = []
    for seed in range(seeds):
        draw = np.random.default_rng(seed)
        classes = np.sort(draw.choice(np.unique(labels.numpy()), num_classes, replace=False))
        drawn = [draw.permutation(np.flatnonzero(labels.numpy() == label))[: 2 * per_class] for label in classes]
        own = np.concatenate([index[:per_class] for index in drawn])
        others = np.concatenate([index[per_class:] for index in drawn])
        numbers = torch.from_numpy(np.searchsorted(classes, labels.numpy()))
        spec, samples = StatisticsSpec(gram=True), features[own].double()
        client = policy.protected(spec, spec.from_features(samples, numbers[own], num_classes), len(own))
        guess = deviations(client, numbers[own], starts=4 if len(own) <= 60 else 1, seed=seed)
        means = client.rows.means.double()
        true, strange = (features[part].double() - means[numbers[part]] for part in (own, others))
        factor = client.scatter_factor()
        nearest = torch.cdist(means[numbers[own]] + guess, features.double()).argmin(dim=1)
        named = 100.0 * float(torch.isin(nearest, torch.from_numpy(own)).double().mean())
        found.append((len(factor or ()), likeness(true, guess), likeness(strange, guess), named))
    rank, of_samples, of_others, of_named = (float(np.mean(column)) for column in zip(*found, strict=True))
    sent = "Gram matrix" if client.has_gram else "by default"
    return Separated(site, sent, rank, of_samples, of_others, of_samples - of_others, of_named)


def searched(features: Tensor, num_classes: int, heads: int, *, known: bool, samples: int) -> float:
    """Return the mean cosine of a sample's deviation from the mean and what heads find of it.

    Parameters
    ----------
    features : Tensor
        (N, d); the first are the samples.
    num_classes : int
        Of the heads.
    heads : int
        How many the node scores.
    known : bool
        True if the attacker knows the principal directions of the others.
    samples : int
        How many.
    """
    others, generator = features[samples:].double(), torch.Generator().manual_seed(0)
    true = features[:samples].double() - others.mean(dim=0)
    dim, lines_each = true.shape[1], max(num_classes // 2, 1)
    directions = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=generator))[0].T
    if known:
        directions = torch.linalg.eigh(torch.cov(others.T))[1].T.flip(0)
    guess = torch.zeros_like(true)
    for lines in directions.split(lines_each)[:heads]:
        along = true @ lines.T  # two classes stand for both ways along a line; of two, the margin says how far
        if num_classes > 2:
            kept = along.abs() == along.abs().amax(dim=1, keepdim=True)
            along = torch.where(kept, along.sign(), 0.0)
        guess += along @ lines
    cosines = torch.nn.functional.cosine_similarity(true, guess, dim=1)
    return float(cosines.mean())


def table(lines: Sequence[Separated]) -> str:
    """Return a Markdown table."""
    head = [
        "| classes x samples | sent | directions | samples | others | given away | named (%) |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [
        f"| {line.site} | {line.sent} | {line.rank:.0f} "
        f"| {line.samples:.2f} | {line.others:.2f} | {line.given_away:.2f} | {line.named:.0f} |"
        for line in lines
    ]
    return "\n".join(head + rows)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--settings", default="dataset=builtin", help="run-config keys of data and network")
    parser.add_argument("--sites", nargs="+", default=["1x5", "3x8", "1x50", "10x20"], help="classes x samples of each")
    parser.add_argument("--heads", type=int, nargs="+", help="choose heads of these numbers of classes instead")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dimensions", type=int, default=0, help="number of features, drawn; 0 for all")
    options = parser.parse_args(arguments)
    data = features_of(config_of(options.settings))
    for number in options.heads or ():
        heads = NodeConfig(data_path="/").max_heads
        found = [searched(data.train, number, heads, known=known, samples=100) for known in (False, True)]
        print(f"| {number} | {heads} | {found[0]:.2f} | {found[1]:.2f} |")
    if options.heads:
        return
    kept = np.random.default_rng(0).permutation(data.train.shape[1])[: options.dimensions or None]
    features = data.train[:, torch.from_numpy(kept)]
    policies = NodePolicy(), NodePolicy(min_gram_samples=None)
    lines = (
        measure(features, data.train_labels, site, policy, seeds=options.seeds)
        for site in options.sites
        for policy in policies
    )
    print(table(printed(lines)))


if __name__ == "__main__":
    main()
