"""What a run folder says of a run and in the headers of its heads."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch

from fedstats_app import __version__
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.engine import BFLOAT16
from fedstats_app.backbones.options import BackboneOptions
from fedstats_app.heads import Calibration
from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.training_record import TrainingResult
from fedstats_app.statistics import FeatureMap

VERSIONED = (
    "flwr",
    "flwr-datasets",
    "ray",
    "torch",
    "torchvision",
    "openvino",
    "timm",
    "transformers",
    "numpy",
    "safetensors",
)


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
    run_config: Mapping[str, object],
    data_name: str,
    backbone: Backbone,
    class_names: Sequence[str],
    *,
    clients: int,
    supernodes: int,
) -> dict[str, object]:
    """Return the content of config.json: everything that was used."""
    return {
        "run_config": dict(run_config),
        "data": data_name,
        "backbone": {
            "name": backbone.name,
            "weights": backbone.weights_source,
            "features": backbone.features,
            "licence": asdict(backbone.licence),
            "fingerprint": backbone.fingerprint,
            "feature_dim": backbone.feature_dim,
            "engine": backbone.engine,
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


def common_metadata(
    options: BackboneOptions, backbone: Backbone, data_name: str, class_names: Sequence[str], seed: int
) -> dict[str, str]:
    """Return what the headers of all heads of a run have in common, as strings.

    Parameters
    ----------
    options : BackboneOptions
        As they are used.
    backbone : Backbone
        Made from them.
    data_name : str
        Of the training data.
    class_names : sequence of str
        In the order of the heads' rows.
    seed : int
        Of the run.
    """
    return {
        "backbone": options.backbone,
        "backbone-weights": options.backbone_weights,
        "backbone-arguments": options.backbone_arguments,
        "backbone-pooling": options.backbone_pooling,
        "backbone-features": backbone.features,
        "backbone-precision": "bfloat16" if backbone.engine == BFLOAT16 else "float32",
        "backbone-licence": json.dumps(asdict(backbone.licence)),
        "backbone-fingerprint": backbone.fingerprint,
        "batch-norm": "groupnorm" if options.norm == "group" else "batch",
        "input-mean": options.input_mean,
        "input-std": options.input_std,
        "input-size": str(backbone.input_size),
        "sample-kind": backbone.kind,
        "text-pooling": options.text_pooling,
        "text-template": options.text_template,
        "transform": json.dumps(backbone.transform_spec),
        "class-names": json.dumps(list(class_names)),
        "dataset": data_name,
        "seed": str(seed),
        "versions": json.dumps(versions()),
    }


def head_metadata(result: MethodResult, feature_map: FeatureMap, *, evaluated_on: str) -> dict[str, str]:
    """Return what is needed to use a solved head, and where it came from, beside :func:`common_metadata`.

    `temperature` and `calibrated-on` are there only if the head was calibrated.
    """
    return {
        "feature-map": json.dumps(feature_map.to_dict()),
        "method": result.method,
        "regulariser": result.regulariser,
        "num-examples": str(result.num_examples),
        "num-clients": str(result.num_clients),
        **_calibrated(result.calibration, evaluated_on),
    }


def trained_head_metadata(
    result: TrainingResult,
    feature_map: FeatureMap,
    clients: Mapping[int, int],
    *,
    by: str,
    temperature: float,
    evaluated_on: str,
) -> dict[str, str]:
    """Return the same for a head that was trained.

    Parameters
    ----------
    result : TrainingResult
        Of the training.
    feature_map : FeatureMap
        Between backbone and head.
    clients : mapping
        From client to its number of samples.
    by : str
        What moved the weights: an optimiser's name, or a trainer's.
    temperature : float
        By which scores were divided in training, and are where the head was not calibrated.
    evaluated_on : str
        "clients" or "server".
    """
    return {
        "feature-map": json.dumps(feature_map.to_dict()),
        "method": result.name,
        "regulariser": f"{by} from {result.start}, {result.head_round} rounds",
        "num-examples": str(sum(clients.values())),
        "num-clients": str(len(clients)),
        "temperature": str(temperature),
        **_calibrated(result.calibration, evaluated_on),
    }


def _calibrated(calibration: Calibration | None, evaluated_on: str) -> dict[str, str]:
    if calibration is None:
        return {}
    samples = "samples that clients kept" if evaluated_on == "clients" else "test samples of the server"
    return {
        "temperature": str(calibration.temperature),
        "calibrated-on": f"{calibration.num_examples} {samples}",
    }
