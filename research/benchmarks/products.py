"""Loss of accuracy by Gram matrices that secure sums approximate from products (`secure-sums = "means-N"`).

    python -m research.benchmarks.products "dataset=builtin"

The samples are dealt to clients in turn. Their words are added as in a run, without masks, which change no sum.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from fedstats_app.heads.gaussian import solve_gaussian
from fedstats_app.heads.ridge import solve_ridge
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.exact import on_grid
from fedstats_app.statistics.secure_words import Gram, Known, SecureLayout, Words, approximated_by
from research.benchmarks.features import config_of, features_of
from research.benchmarks.lines import parser_of

CLIENTS = 100


def measure(experiment: str) -> dict[str, dict[str, float]]:
    """Return for each kind of Gram matrix the heads' accuracies, and the megabytes that a client sends of it."""
    data, found = features_of(config_of(experiment)), {}
    norm = float(torch.linalg.vector_norm(data.train, dim=1).max()) + 1.0
    for gram in (kind for kind in get_args(Gram) if kind != "none"):
        layout = SecureLayout.of(data.num_classes, data.train.shape[1], gram, CLIENTS, len(data.train), norm)
        parts = [
            FeatureStatistics.from_features(
                on_grid(data.train[client::CLIENTS].to(torch.float64), layout.bits),
                data.train_labels[client::CLIENTS],
                data.num_classes,
            )
            for client in range(CLIENTS)
        ]
        total = summed(layout, parts)
        ridge = solve_ridge(total, ridge_lambda="auto")
        within = solve_gaussian(total, covariance="within", shrinkage="auto")
        own = [words for kind in layout.kinds[2:] for words in layout.words(kind, 0)]
        found[gram] = {
            "fed3r": data.accuracy(ridge),
            "fedcgs": data.accuracy(within),
            "megabytes": sum(number * kind.itemsize for number, kind in [*own, layout.words("sums", 0)[-1]]) / 1e6,
        }
    return found


def summed(layout: SecureLayout, parts: Sequence[FeatureStatistics]) -> FeatureStatistics:
    """Return what the server makes of clients' words."""

    def added(words: list[Words]) -> Words:
        return [sum(arrays[1:], arrays[0]) for arrays in zip(*words, strict=True)]

    allowed = torch.ones(layout.num_classes, dtype=torch.bool)
    total = layout.read_sums(added([layout.sums(part, allowed) for part in parts]), allowed)
    if layout.gram == "exact":
        return total
    known = Known.of(total)
    if layout.gram == "triangle":
        return layout.read_scatter(added([layout.scatter(part, known) for part in parts]), total, known)

    def product_with(_: str, basis: Tensor) -> Tensor:
        words: Any = added([layout.product(part, known, basis) for part in parts])
        return layout.read_product(words, known, basis)

    return approximated_by(total, known, layout.products, product_with)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line of JSON for each kind."""
    parser = parser_of(__doc__)
    parser.add_argument("experiment", help="a TOML file, or key=value pairs")
    for gram, results in measure(parser.parse_args(arguments).experiment).items():
        print(json.dumps({"gram": gram, **results}))


if __name__ == "__main__":
    main()
