"""FedCOF without shrinkage, solved exactly and as the papers' code goes about it, by numbers of clients.

    python -m research.benchmarks.no_shrinkage "dataset=parquet:/data/cifar100 backbone=squeezenet1_1 input-size=224 \\
      partitioner=fedcof" --clients 10 20 30 50
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedstats_app.data.clients import partitions
from fedstats_app.heads import solve_fedcof
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import ClassMeanRows
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.fedcof_rows import fedcof_as_published
from research.benchmarks.lines import parser_of


def sent_rows(data: Features, config: AppConfig) -> ClassMeanRows:
    """Return the mean of every class of every client, in float32 as it travels."""
    ids: list[int] = []
    counts: list[int] = []
    means: list[Tensor] = []
    for part in partitions(config.data, config.partition, config.run.seed):
        index = torch.from_numpy(part)
        labels = data.train_labels[index]
        for label in torch.unique(labels).tolist():
            own = data.train[index[labels == label]]
            ids.append(label)
            counts.append(len(own))
            means.append(own.double().mean(0).float())
    return ClassMeanRows(torch.tensor(ids), torch.tensor(counts), torch.stack(means), data.num_classes)


def row(experiment: str, data: Features, num_clients: int) -> str:
    """Return a line of the table: clients, means, accuracy (%) of both."""
    rows = sent_rows(data, config_of(experiment, num_clients=num_clients))
    heads = (
        solve_fedcof(rows, shrinkage=0.0).weight.float(),
        fedcof_as_published(rows.class_ids, rows.counts, rows.means.float(), data.num_classes, gamma=0.0),
    )
    accuracies = [float(((data.test @ head.T).argmax(1) == data.test_labels).double().mean()) for head in heads]
    return " | ".join(
        ["", str(num_clients), str(len(rows)), *(f"{100 * accuracy:.2f}" for accuracy in accuracies), ""]
    ).strip()


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("experiment", metavar="FILE.toml or 'key=value ...'")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 20, 30, 50])
    given = parser.parse_args(arguments)
    data = features_of(config_of(given.experiment))
    print("| clients | means | exact (%) | as published (%) |\n| ---: | ---: | ---: | ---: |")
    for num_clients in given.clients:
        print(row(given.experiment, data, num_clients), flush=True)


if __name__ == "__main__":
    main()
