"""CCVR's head of a run's clients, as a file that the run's training starts from (FedCOF's table 10).

    python -m research.benchmarks.ccvr_head "dataset=builtin num-clients=10" /PATH/ccvr.safetensors
    fedstats run -c "num-clients=10 fine-tune='probe' start-head='/PATH/ccvr.safetensors'"

Of the settings, those of data, partition, seed and backbone count: they must be the run's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.data.clients import partitions, training_set
from fedstats_app.report.head_file import head_to_bytes
from fedstats_app.report.record import common_metadata
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from research.baselines import ccvr_samples, class_gaussians, softmax_head
from research.benchmarks.baselines import PER_CLASS
from research.benchmarks.features import config_of, features_of


def ccvr_head_file(config: AppConfig) -> bytes:
    """Return CCVR's head of the clients that a run has, in the format of a run folder's heads.

    Parameters
    ----------
    config : AppConfig
        Of the run.

    Raises
    ------
    ValueError
        If the data have no test split, or a sample cannot be read.
    """
    data, names = features_of(config), training_set(config.data).class_names
    parts = [torch.from_numpy(part) for part in partitions(config.data, config.partition, config.run.seed)]
    sent = {
        client: class_gaussians(data.train[part], data.train_labels[part]).sent_as(torch.float32)
        for client, part in enumerate(parts)
        if len(part)
    }
    drawn = ccvr_samples(sent, per_class=PER_CLASS, seed=config.run.seed)
    head = softmax_head(*drawn, data.num_classes, key=(config.run.seed,))
    options = config.backbone_for(own_data=False)
    backbone = loaded_backbone(options, NodeConfig("", 0, 1).engine_root(config.cache))
    print(f"CCVR of {len(sent)} clients: {100 * data.accuracy(head):.2f} %")
    own = {"method": "ccvr", "feature-map": "none", "num-clients": str(len(sent))}
    return head_to_bytes(
        head, {**common_metadata(options, backbone, config.data.dataset, names, config.run.seed), **own}
    )


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", help="run-config keys, or a TOML file of them")
    parser.add_argument("file", type=Path, help="to write")
    options = parser.parse_args(arguments)
    options.file.write_bytes(ccvr_head_file(config_of(options.settings)))


if __name__ == "__main__":
    main()
