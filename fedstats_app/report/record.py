"""Metadata of a run and its heads, and the check that a resumed run has the same configuration."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedstats_app import __version__
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.backbone_options import BackboneOptions
from fedstats_app.backbones.engine import BFLOAT16
from fedstats_app.base.files import read_json_file, refusing_others
from fedstats_app.heads import Calibration
from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.training_record import TrainingResult

VERSIONED = (
    *("flwr", "flwr-datasets", "ray", "torch", "torchvision", "openvino", "timm", "transformers", "numpy"),
    "safetensors",
)


@functools.cache
def versions() -> Mapping[str, str]:
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
            "licence": backbone.licence,
            "fingerprint": backbone.fingerprint,
            "feature_dim": backbone.feature_dim,
            "engine": backbone.engine,
            "input_size": backbone.input_size,
            "transform": backbone.transform_spec,
        },
        "class_names": list(class_names),
        "num_clients": clients,
        "num_supernodes": supernodes,
        "versions": dict(versions()),
        "torch_threads": torch.get_num_threads(),
        "platform": platform.platform(),
    }


def common_metadata(
    options: BackboneOptions,
    backbone: Backbone,
    data_name: str,
    class_names: Sequence[str],
    seed: int,
    targets: str = "",
) -> dict[str, str]:
    """Return the entries that the headers of all heads of a run share; ``targets`` are "labels" or "numbers"."""
    return {
        **({"targets": targets} if targets else {}),
        "backbone": options.backbone,
        "backbone-weights": options.backbone_weights,
        "backbone-arguments": options.backbone_arguments,
        "backbone-pooling": options.backbone_pooling,
        "backbone-features": backbone.features,
        "backbone-precision": "bfloat16" if backbone.engine == BFLOAT16 else "float32",
        "backbone-licence": backbone.licence,
        "backbone-fingerprint": backbone.fingerprint,
        "batch-norm": "groupnorm" if options.norm == "group" else "batch",
        "feature-map": backbone.feature_map,
        "feature-power": "+".join(f"{network.power:g}" for network in options.networks),
        "input-mean": options.input_mean,
        "input-std": options.input_std,
        "input-size": backbone.sizes,
        "sample-kind": backbone.kind,
        "text-template": options.text_template,
        "transform": json.dumps(backbone.transform_spec),
        "class-names": json.dumps(list(class_names)),
        "dataset": data_name,
        "seed": str(seed),
        "versions": json.dumps(versions()),
    }


def head_metadata(result: MethodResult, deviations: Sequence[float] = ()) -> dict[str, str]:
    """Return the entries of a solved head's own, beside :func:`common_metadata`.

    `temperature` and `calibrated-on` are there only if the head was calibrated, `deviations` only for numbers.
    """
    return {
        **({"deviations": json.dumps(list(deviations))} if deviations else {}),
        "method": result.method,
        "regulariser": result.regulariser,
        "num-examples": str(result.num_examples),
        "num-clients": str(result.num_clients),
        **_calibrated(result.calibration),
    }


def trained_head_metadata(
    result: TrainingResult,
    clients: Mapping[int, int],
    *,
    by: str,
    temperature: float,
) -> dict[str, str]:
    """Return the same for a trained head; ``clients`` has the number of samples of each.

    `by` is what moved the weights: an optimiser's name, or a trainer's. Scores were divided by `temperature` in
    training, and are where the head was not calibrated.
    """
    return {
        "method": result.name,
        "regulariser": f"{by} from {result.start}, {result.head_round} rounds",
        "num-examples": str(sum(clients.values())),
        "num-clients": str(len(clients)),
        "temperature": str(temperature),
        **_calibrated(result.calibration),
    }


def _calibrated(calibration: Calibration | None) -> dict[str, str]:
    if calibration is None:
        return {}
    samples = f"{calibration.num_examples} {calibration.fitted_on}"
    return {"temperature": str(calibration.temperature), "calibrated-on": samples}


# Settings that a resumed run may change, because they change no number.
FREE_KEYS = frozenset(
    {"resume", "output-dir", "num-server-rounds", "wait-timeout", "settle-seconds", "reply-timeout", "plots"}
    | {"cache-dir", "feature-cache"}
)


class AnotherRunError(ValueError):
    """A resumed run has other settings, data or backbone; the message says which."""


def check_same_run(folder: Path, record: Mapping[str, object]) -> list[str]:
    """Check that a resumed run has the same configuration, and return differences that may change the last bits.

    Parameters
    ----------
    folder : Path
        The run folder to go on in.
    record : mapping
        What config.json would say now (:func:`fedstats_app.report.record.run_record`).

    Returns
    -------
    list of str
        Differences of versions, threads and platform, in words: results may differ in rounding.

    Raises
    ------
    AnotherRunError
        If a setting that changes results is another one, or data or backbone are.
    ValueError
        If config.json is damaged.
    FileNotFoundError
        If it is no run folder.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"resume: {folder} has no config.json, so there is no run to resume")
    before = read_json_file(path)
    now: dict[str, Any] = json.loads(json.dumps(record))
    with refusing_others(path, "the configuration of a run"):
        settings = before["run_config"].keys() | now["run_config"].keys()
        problems = [
            f"{key}: was {before['run_config'].get(key)!r}, is {now['run_config'].get(key)!r}"
            for key in sorted(settings - FREE_KEYS)
            if before["run_config"].get(key) != now["run_config"].get(key)
        ]
        problems += [
            f"{key}: was {before[key]!r:.200}, is {now[key]!r:.200}"
            for key in ("data", "class_names", "num_clients")
            if before[key] != now[key]
        ]
        networks = [record["backbone"]["fingerprint"] for record in (before, now)]
        if networks[0] != networks[1]:
            problems.append(f"backbone: was {networks[0][:16]}, is {networks[1][:16]}")
    if problems:
        raise AnotherRunError("resume: this is not the run that was interrupted:\n  " + "\n  ".join(problems))
    return [
        f"{key}: was {before.get(key)!r}, is {now.get(key)!r}"
        for key in ("versions", "torch_threads", "platform")
        if before.get(key) != now.get(key)
    ]
