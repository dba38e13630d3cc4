"""From a finished strategy to what the run folder holds."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from fedstats_app import __version__
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.config import AppConfig
from fedstats_app.heads import CalibrationSums, ConfusionMatrix
from fedstats_app.methods import METHODS
from fedstats_app.outcomes.method_result import MethodResult
from fedstats_app.outcomes.training_record import TrainingResult
from fedstats_app.results.communication import uplink_bytes
from fedstats_app.statistics import FeatureMap

if TYPE_CHECKING:
    # Only names the type: results must not depend on Flower.
    from fedstats_app.strategies import StatisticsStrategy

VERSIONED = ("flwr", "flwr-datasets", "ray", "torch", "torchvision", "transformers", "numpy", "safetensors")


def versions() -> dict[str, str]:
    """Return the versions of this app, Python and the libraries that results can depend on."""
    found = {"fedstats-app": __version__, "python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def run_record(
    config: AppConfig,
    data_name: str,
    backbone: Backbone,
    class_names: Sequence[str],
    *,
    clients: int,
    supernodes: int,
) -> dict[str, object]:
    """Return the content of config.json: everything that was used."""
    return {
        "run_config": config.to_run_config(),
        "data": data_name,
        "backbone": {
            "name": backbone.name,
            "weights": backbone.weights_source,
            "fingerprint": backbone.fingerprint,
            "feature_dim": backbone.feature_dim,
            "input_size": backbone.input_size,
            "transform": backbone.transform_spec,
        },
        "class_names": list(class_names),
        "num_clients": clients,
        "num_supernodes": supernodes,
        "versions": versions(),
        "torch_threads": torch.get_num_threads(),
        "platform": platform.platform(),
    }


def method_result(
    strategy: StatisticsStrategy,
    method: str,
    confusion: ConfusionMatrix | None,
    calibration: CalibrationSums | None = None,
) -> MethodResult:
    """Return one method's entry in results.json.

    Parameters
    ----------
    strategy : StatisticsStrategy
        Finished.
    method : str
        One that it served.
    confusion : ConfusionMatrix or None
        None where nothing was evaluated.
    calibration : CalibrationSums or None
        Of the same samples.
    """
    head, statistics = strategy.heads[method], strategy.statistics(method)
    evaluated = confusion is not None and confusion.num_examples > 0
    per_class: list[float | None] = []
    if evaluated and confusion is not None:
        per_class = [None if math.isnan(value) else value for value in confusion.per_class_accuracy.tolist()]
    return MethodResult(
        method=method,
        accuracy=confusion.accuracy if evaluated and confusion is not None else None,
        # Where sites told of no class by itself, there is an accuracy but no mean over classes.
        macro_accuracy=confusion.macro_accuracy if confusion and any(one is not None for one in per_class) else None,
        per_class_accuracy=per_class,
        num_examples=strategy.collection.num_examples,
        num_clients=strategy.collection.num_merged,
        uplink_bytes=uplink_bytes(
            method,
            num_rows=statistics.num_rows if METHODS[method].needs.several_means else statistics.num_pairs,
            num_clients=strategy.collection.num_merged,
            num_classes=strategy.num_classes,
            feature_dim=statistics.feature_dim,
        ),
        wire_bytes=strategy.wire_bytes(method),
        solve_seconds=strategy.solve_seconds[method],
        regulariser=head.report.regulariser,
        ridge_effective=head.report.ridge_effective,
        condition_number=head.report.condition_number,
        calibration=None if calibration is None else calibration.fit(),
        notes=list(head.report.notes),
    )


def head_metadata(
    config: AppConfig,
    data_name: str,
    strategy: StatisticsStrategy,
    result: MethodResult,
    backbone: Backbone,
    class_names: Sequence[str],
    library_versions: Mapping[str, str],
    *,
    evaluated_on: str,
) -> dict[str, str]:
    """Return what is needed to use a head, and where it came from, as strings for the file's header.

    `temperature` and `calibrated-on` are there only if the head was calibrated.
    """
    feature_map = strategy.methods()[result.method].specification.feature_map
    calibration: dict[str, str] = {}
    if result.calibration is not None:
        samples = "samples that clients kept" if evaluated_on == "clients" else "test samples of the server"
        calibration = {
            "temperature": str(result.calibration.temperature),
            "calibrated-on": f"{result.calibration.num_examples} {samples}",
        }
    return {
        **common_metadata(config, data_name, feature_map, backbone, class_names, library_versions),
        "method": result.method,
        "regulariser": result.regulariser,
        "num-examples": str(result.num_examples),
        "num-clients": str(result.num_clients),
        **calibration,
    }


def trained_head_metadata(
    config: AppConfig,
    data_name: str,
    result: TrainingResult,
    feature_map: FeatureMap,
    clients: Mapping[int, int],
    backbone: Backbone,
    class_names: Sequence[str],
    library_versions: Mapping[str, str],
) -> dict[str, str]:
    """Return the same for a head that was trained.

    Parameters
    ----------
    clients : mapping
        From client to its number of samples.
    """
    how = "fedmezo" if config.tuning.fine_tune == "fedmezo" else config.optimizer.optimizer
    return {
        **common_metadata(config, data_name, feature_map, backbone, class_names, library_versions),
        "method": result.name,
        "regulariser": f"{how} from {result.start}, {result.num_rounds} rounds",
        "num-examples": str(sum(clients.values())),
        "num-clients": str(len(clients)),
        "temperature": str(config.tuning.temperature),
    }


def common_metadata(
    config: AppConfig,
    data_name: str,
    feature_map: FeatureMap,
    backbone: Backbone,
    class_names: Sequence[str],
    library_versions: Mapping[str, str],
) -> dict[str, str]:
    """Return what the headers of all heads of a run have in common."""
    return {
        "backbone": config.backbone.backbone,
        "backbone-weights": config.backbone.backbone_weights,
        "backbone-fingerprint": backbone.fingerprint,
        "batch-norm": "groupnorm" if config.tuning.batch_norm == "groupnorm" else "batch",
        "input-size": str(backbone.input_size),
        "sample-kind": backbone.kind,
        "text-pooling": config.backbone.text_pooling,
        "text-template": config.backbone.text_template,
        "transform": json.dumps(backbone.transform_spec),
        "feature-map": json.dumps(feature_map.to_dict()),
        "class-names": json.dumps(list(class_names)),
        "dataset": data_name,
        "seed": str(config.run.seed),
        "versions": json.dumps(dict(library_versions)),
    }
