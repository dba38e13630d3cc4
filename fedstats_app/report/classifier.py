"""Load a head from a run folder and classify images or texts with it."""

import itertools
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, overload

import torch
from PIL import Image
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.backbone_options import BackboneOptions
from fedstats_app.backbones.device import resolve_device
from fedstats_app.backbones.engine import BFLOAT16
from fedstats_app.backbones.names import in_folder
from fedstats_app.backbones.registry import load_networks
from fedstats_app.base.files import read_json_file
from fedstats_app.base.runs import run_named
from fedstats_app.data import Sample, to_rgb
from fedstats_app.data.folder import read_text
from fedstats_app.data.images import open_image
from fedstats_app.data.paths import without_folders
from fedstats_app.heads import LinearHead
from fedstats_app.heads.coverage import LabelMargins
from fedstats_app.heads.likeness import Likeness
from fedstats_app.report.head_file import (
    DISTANCE_LIMIT,
    FILE_KEY,
    LABEL_MARGINS,
    NORMALISATION_KEY,
    PATH_KEYS,
    PRECISION_KEY,
    SUPERSEDED,
    head_files,
    read_head,
)
from fedstats_app.report.method_result import head_to_take
from fedstats_app.report.statistics_file import STATISTICS_FILE, load_statistics

logger = logging.getLogger("fedstats_app")

Number = TypeVar("Number", int, float)
SampleLike = str | os.PathLike[str] | Image.Image
SamplesLike: TypeAlias = SampleLike | Iterable[SampleLike] | Tensor
_ONE = (str, os.PathLike, Image.Image)
# From a header's word, which is that of the run's configuration, to that of the backbone's options.
_NORMS: dict[str, Literal["batch", "group"]] = {"batch": "batch", "groupnorm": "group"}


@dataclass(eq=False)
class Classifier:
    """A frozen backbone and a head. Make one with `load`.

    Parameters
    ----------
    backbone : Backbone
        The network that the head was made for.
    head : LinearHead
        On its features.
    class_names : sequence of str
        One per row of the head.
    method : str
        What made the head, such as `fed3r`.
    temperature : float
        Scores are divided by it before the softmax that makes probabilities of them.
    calibrated_on : str
        Samples on which the temperature was chosen, in words; "" for a head that was not calibrated.
    margins : LabelMargins, optional
        Of samples that the head was not made from, for sets with a promised coverage.
    distance_limit : float, optional
        Distance from the training samples (:mod:`fedstats_app.heads.likeness`) beyond which a sample is unlike them.
    statistics : path, optional
        Run folder with the statistics that distances take.
    targets : {"", "labels", "numbers"}
        What a sample has in place of one class.

    Raises
    ------
    ValueError
        If the head does not fit the features or the class names, or the temperature is not positive.

    Examples
    --------
    >>> from fedstats_app.backbones.registry import load_backbone
    >>> backbone = load_backbone("random:tiny", input_size=16)
    >>> head = LinearHead(torch.zeros(2, backbone.feature_dim), torch.tensor([0.0, 1.0]))
    >>> Classifier(backbone, head, ["cat", "dog"], "fed3r").predict(Image.new("RGB", (20, 20)))
    'dog'
    """

    backbone: Backbone
    head: LinearHead
    class_names: Sequence[str]
    method: str
    _: KW_ONLY
    temperature: float = 1.0
    calibrated_on: str = ""
    margins: LabelMargins | None = None
    distance_limit: float | None = None
    statistics: str | os.PathLike[str] = ""
    targets: str = ""

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        num_classes, head_dim = self.head.weight.shape
        if len(self.class_names) != num_classes:
            raise ValueError(
                f"head {self.method!r} has {num_classes} classes, but there are {len(self.class_names)} class names"
            )
        if head_dim != self.backbone.feature_dim:
            raise ValueError(
                f"head {self.method!r} is for features of dimension {head_dim}, "
                f"but those of backbone {self.backbone.name!r} have {self.backbone.feature_dim}"
            )
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(f"head {self.method!r}: temperature must be positive and finite, got {self.temperature}")

    def __repr__(self) -> str:
        return f"<Classifier {self.method} of {len(self.class_names)} classes on {self.backbone.name}>"

    @property
    def kind(self) -> Literal["image", "text"]:
        """Return the modality of the inputs: "image" or "text"."""
        return self.backbone.kind

    # To a type checker a `str` is also an iterable of strings; at run time the first overload wins.
    @overload
    def predict(self, samples: SampleLike) -> str: ...  # type: ignore[overload-overlap]

    @overload
    def predict(self, samples: Iterable[SampleLike]) -> list[str]: ...

    def predict(self, samples: SampleLike | Iterable[SampleLike]) -> str | list[str]:
        """Name the class of one sample, or of each of several; of several labels those it has, with "|" between them.

        Parameters
        ----------
        samples : path, PIL image or text, or iterable of them
            Images of any mode and size; they are treated as the training samples were. Of a head for texts a str is a
            text, and a `pathlib.Path` a text file.

        Returns
        -------
        str or list of str
            A name for one sample, a list of names for an iterable.

        Raises
        ------
        FileNotFoundError, ValueError
            If a file does not exist or cannot be read, which the message names; or the head predicts numbers, which
            are its `scores`.
        TypeError
            If a sample has another type.
        """
        if self.targets:
            self._refuse_numbers("predict")
            held = [
                "|".join(name for name, has in zip(self.class_names, row, strict=True) if has)
                for row in (self.scores(samples) >= 0).tolist()
            ]
            return held[0] if isinstance(samples, _ONE) else held
        names = [self.class_names[index] for index in self.scores(samples).argmax(dim=1).tolist()]
        return names[0] if isinstance(samples, _ONE) else names

    def scores(self, samples: SamplesLike) -> Tensor:
        """Score every class; the highest wins.

        They order the classes of one sample. They are no probabilities and their scale differs between methods, so
        that a softmax of them would look like a confidence without being one: see `probabilities`.

        Returns
        -------
        Tensor
            (n, C) float64; -inf for classes of which no client had a sample.

        Raises
        ------
        FileNotFoundError, ValueError, TypeError
            As `predict`.
        """
        return self.head.logits(self.features(samples))

    def features(self, samples: SamplesLike) -> Tensor:
        """Compute the features that the head takes; every other method takes them in place of samples.

        Returns
        -------
        Tensor
            (n, d) float32 on the CPU.

        Raises
        ------
        FileNotFoundError, ValueError, TypeError
            As `predict`.
        """
        if isinstance(samples, Tensor):
            return samples
        return self.features_of_inputs(map(self.backbone.input_of, read_samples(samples, self.backbone)))

    def features_of_inputs(self, inputs: Iterable[Any]) -> Tensor:
        """Compute the features (n, d) float32 of n samples whose inputs these are (``backbone.input_of``)."""
        batches = [batch.cpu() for batch in self.backbone.extract_inputs(inputs)]
        return torch.cat([torch.empty(0, self.backbone.feature_dim), *batches])

    def unlike(self, samples: SamplesLike) -> Tensor:
        """Return for each sample whether it is farther from the training data than 99 % of test samples.

        Returns
        -------
        Tensor
            (n,) bool.

        Raises
        ------
        FileNotFoundError, ValueError, TypeError
            As `predict`; or if there is no `distance_limit`, or the statistics are not in the run folder.
        """
        if self.distance_limit is None:
            raise ValueError(f"head {self.method!r} has no distance from its training data: it needs a Gram matrix")
        return self._likeness.distances(self.features(samples)) > self.distance_limit

    @cached_property
    def _likeness(self) -> Likeness:
        return Likeness.of(load_statistics(Path(self.statistics)).total.summed(gram=True))

    def probabilities(self, samples: SamplesLike) -> Tensor:
        """Give every class a probability: the softmax of the scores divided by the head's temperature.

        Of several labels it is each one's sigmoid, so that a label is given from 1/2 on.

        They are calibrated for samples like those in `calibrated_on`; if it is empty, they are a softmax of scores of
        any scale.

        Returns
        -------
        Tensor
            (n, C) float64, every row adds up to 1; 0 for classes of which no client had a sample.

        Raises
        ------
        FileNotFoundError, ValueError, TypeError
            As `predict`.
        """
        if self.targets:
            self._refuse_numbers("probabilities")
            return torch.sigmoid(self.scores(samples))
        return torch.softmax(self.scores(samples) / self.temperature, dim=1)

    def _refuse_numbers(self, method: str) -> None:
        if self.targets == "numbers":
            raise ValueError(f"{method}: head {self.method!r} predicts numbers, which are its scores")

    @overload
    def top(  # type: ignore[overload-overlap]
        self, samples: SampleLike, k: int = 5, *, coverage: float | None = None
    ) -> list[tuple[str, float]]: ...

    @overload
    def top(
        self, samples: Iterable[SampleLike] | Tensor, k: int = 5, *, coverage: float | None = None
    ) -> list[list[tuple[str, float]]]: ...

    def top(
        self, samples: SamplesLike, k: int = 5, *, coverage: float | None = None
    ) -> list[tuple[str, float]] | list[list[tuple[str, float]]]:
        """Name the likeliest classes of one sample, or of each of several, with their probabilities.

        Parameters
        ----------
        samples : path, PIL image or text, or iterable of them
            As for `predict`.
        k : int
            Number of classes; all if there are fewer.
        coverage : float, optional
            In place of k, as many classes as it takes to have the right one among them with this chance, for samples
            like those in `margins` (`fedstats_app.heads.coverage`).

        Returns
        -------
        list of (str, float), or list of such lists
            Class name and probability (see `probabilities`), the likeliest first; a list of them for an iterable.

        Raises
        ------
        FileNotFoundError, ValueError, TypeError
            As `predict`, or if k is less than 1, coverage is not between 0 and 1, or there are no `margins` for it.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        self._refuse_numbers("top")
        if coverage is not None and self.margins is None:
            raise ValueError(f"head {self.method!r} was scored on no samples, so that no set has a promised coverage")
        scores = self.scores(samples)
        shares = torch.sigmoid(scores) if self.targets else torch.softmax(scores / self.temperature, dim=1)
        values, classes = shares.sort(dim=1, descending=True, stable=True)
        if coverage is None or self.margins is None:
            chosen = torch.arange(len(self.class_names)).expand_as(classes) < k
        else:
            chosen = self.margins.sets(scores, coverage).gather(1, classes)
        ranked = [
            [(self.class_names[index], value) for index, value, held in zip(*row, strict=True) if held]
            for row in zip(classes.tolist(), values.tolist(), chosen.tolist(), strict=True)
        ]
        return ranked[0] if isinstance(samples, _ONE) else ranked


def load(
    run_folder: str | os.PathLike[str],
    method: str | None = None,
    *,
    weights: str | os.PathLike[str] | None = None,
    device: str = "auto",
    batch_size: int | Literal["auto"] | None = None,
    engine: str = "torch",
) -> Classifier:
    """Load a run's head and the backbone that it was made for: the tuned one where training changed it.

    Parameters
    ----------
    run_folder : path
        The folder whose path the run printed last; `latest` for the newest in ~/fedstats-runs.
    method : str, optional
        Method or training whose head to take, such as `fed3r` or `fed3r-full`; by default the one that the run
        recommends, or a trained one if it is more accurate.
    weights : path, optional
        The backbone's weight file, or a language model's folder, where it is not (any more) where the run had it.
    device : str
        `auto`, `cpu`, `cuda`, ...
    batch_size : int or "auto", optional
        Samples per forward pass, by default 1 on a CPU, else 8: a single one costs as much as a whole batch. Many small
        images are faster in larger ones: "auto" suits many samples.
    engine : {"torch", "auto", "openvino"}
        What computes features: OpenVINO takes about a second to load, and is then faster (extra: fast). Heads of
        features in bfloat16 have them computed by OpenVINO in any case.

    Returns
    -------
    Classifier
        Ready to predict.

    Raises
    ------
    FileNotFoundError
        If the folder, a head or the backbone's weights are missing.
    ValueError
        If a file is damaged, or the backbone's weights or transform are not those the head was made with (their
        fingerprints differ).
    """
    folder = Path(run_named(os.fspath(run_folder))).expanduser()
    name = method if method is not None else _head_to_take(folder)
    path = folder / "heads" / f"{name}.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"no head of method {name!r}; {_available(folder)}")
    head, metadata = read_head(path)
    if SUPERSEDED in metadata:
        logger.warning("%s is superseded: %s", path, metadata[SUPERSEDED])
    for key in ("backbone", "input-size", "backbone-fingerprint", "feature-map", "feature-power", "class-names"):
        if key not in metadata:
            raise ValueError(f"head {name!r}: its metadata must have {key!r}, got only {', '.join(sorted(metadata))}")
    given = None if weights is None else str(weights)
    if batch_size is None:
        batch_size = 1 if resolve_device(device).type == "cpu" else 8
    backbone = _load_backbone(path, metadata, weights=given, batch_size=batch_size, device=device, engine=engine)
    expected = metadata["backbone-fingerprint"]
    if backbone.fingerprint != expected:
        raise ValueError(
            f"head {name!r} was made with a backbone {backbone.name!r} of fingerprint {expected}, but the one loaded "
            f"here (weights: {backbone.weights_source}) has {backbone.fingerprint}: its weights or its transform "
            f"differ. Pass the right weight file as `weights`."
        )
    try:
        class_names = json.loads(metadata["class-names"])
    except (ValueError, RecursionError):
        class_names = metadata["class-names"]
    if not isinstance(class_names, list) or not all(isinstance(class_name, str) for class_name in class_names):
        raise ValueError(f"head {name!r}: class-names must be a JSON list of strings, got {class_names!r:.200}")
    temperature = next(_numbers(metadata, "temperature", float, "1.0"))
    calibrated_on, targets = metadata.get("calibrated-on", ""), metadata.get("targets", "")
    deviations = tuple(map(float, json.loads(metadata.get("deviations", "[]"))))
    head = replace(head, report=replace(head.report, deviations=deviations))
    margins = None
    if LABEL_MARGINS in metadata:
        margins = LabelMargins.from_json(metadata[LABEL_MARGINS], len(class_names))
    limit = metadata.get(DISTANCE_LIMIT) if (folder / STATISTICS_FILE).is_file() else None
    return Classifier(
        backbone,
        head,
        class_names,
        name,
        distance_limit=None if limit is None else float(limit),
        statistics=folder,
        temperature=temperature,
        calibrated_on=calibrated_on,
        margins=margins,
        targets=targets,
    )


def _with_paths(head: Path, metadata: Mapping[str, str]) -> dict[str, str]:
    """Return a head's metadata with whole paths where the configuration of its run has them.

    A head may be handed on, so that its header has only the last part of a path; config.json stays.
    """
    config = head.parent.parent / "config.json"
    settings = read_json_file(config).get("run_config", {}) if config.is_file() else {}
    given = {key: str(settings.get(key, "")) for key in PATH_KEYS}
    return {**metadata, **{key: path for key, path in given.items() if without_folders(path) == metadata.get(key)}}


def _load_backbone(
    head: Path,
    metadata: Mapping[str, str],
    *,
    weights: str | None,
    batch_size: int | Literal["auto"],
    device: str,
    engine: str = "torch",
) -> Backbone:
    """Load the backbone that a head's metadata name: a tuned one from the head's folder, else an official one.

    `weights` is a weight file, or a model's folder, to use instead of the one named there. The rest is as for
    `fedstats_app.backbones.load_backbone`, but a head of features in bfloat16 takes the engine that makes them.

    Raises
    ------
    WeightsError
        If weights are missing, are damaged or do not fit.
    ValueError
        If an entry has a value that is not allowed.
    """
    tuned, metadata = metadata.get(FILE_KEY, ""), _with_paths(head, metadata)
    normalisation = metadata.get(NORMALISATION_KEY, "batch")
    if normalisation not in _NORMS:
        raise ValueError(f"{NORMALISATION_KEY} must be one of {', '.join(_NORMS)}, got {normalisation!r}")
    if tuned and Path(tuned).name != tuned:
        raise ValueError(f"{head}: {FILE_KEY} must be a file name without a folder, got {tuned!r}")
    name, recorded = metadata["backbone"], str(head.with_name(tuned)) if tuned else metadata.get("backbone-weights", "")
    if tuned and weights is not None and Path(weights).is_dir():
        # The model's folder: its tokenizer or its config.json are not in the run folder, the tuned weights are.
        folder = Path(weights)
        name, weights = in_folder(name, folder), None
    options = BackboneOptions(
        backbone=name,
        backbone_weights=recorded if weights is None else weights,
        backbone_arguments=metadata.get("backbone-arguments", ""),
        backbone_pooling=metadata.get("backbone-pooling", "auto"),
        input_mean=metadata.get("input-mean", ""),
        input_std=metadata.get("input-std", ""),
        text_template=metadata.get("text-template", ""),
        engine=BFLOAT16 if metadata.get(PRECISION_KEY) == "bfloat16" else engine,
        batch_size=batch_size,
        device=device,
        norm=_NORMS[normalisation],
    )
    sizes, powers = _numbers(metadata, "input-size", int), _numbers(metadata, "feature-power", float)
    networks = [
        replace(network, input_size=size, feature_power=power)
        for network, size, power in zip(options.networks, sizes, powers, strict=False)
    ]
    return load_networks(networks, metadata["feature-map"])


def _numbers(metadata: Mapping[str, str], key: str, kind: type[Number], default: str = "") -> Iterator[Number]:
    """Read a number of each network from a head's metadata, where a single one is that of all."""
    value = metadata.get(key, default)
    try:
        return itertools.cycle([kind(number) for number in value.split("+")])
    except ValueError as error:
        raise ValueError(f"a head's {key} must be a number, got {value!r:.60}") from error


def _head_to_take(folder: Path) -> str:
    path = folder / "results.json"
    if not path.is_file():
        if len(heads := head_files(folder)) == 1:
            return heads[0].stem  # a folder made by `fedstats export --hub`
        raise FileNotFoundError(f"{path} does not exist, so name the method; {_available(folder)}")
    if not (taken := head_to_take(read_json_file(path))):
        raise ValueError(f"{path} has no method with an accuracy: name the method to load; {_available(folder)}")
    return taken


def _available(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder"
    names = ", ".join(path.stem for path in head_files(folder))
    return f"{folder} has heads of: {names or 'no method (status.json says how the run ended)'}"


def read_samples(samples: SampleLike | Iterable[SampleLike], backbone: Backbone) -> Iterator[Sample]:
    """Read samples, as `Classifier.predict` takes and refuses them, one by one, so that many fit in memory."""
    for sample in [samples] if isinstance(samples, _ONE) else samples:
        yield _read(sample, backbone.kind)


def _read(sample: SampleLike, kind: Literal["image", "text"]) -> Sample:
    if kind == "text" and isinstance(sample, str):
        return sample
    if kind == "image" and isinstance(sample, Image.Image):
        return to_rgb(sample)
    if not isinstance(sample, (str, os.PathLike)):
        wanted = "a str, or the Path of a text file" if kind == "text" else "a path or a PIL image"
        raise TypeError(f"{'a' if kind == 'text' else 'an'} {kind} must be {wanted}, got {type(sample).__name__}")
    path = Path(sample)
    if not path.is_file():
        raise FileNotFoundError(f"no {kind} at {path}")
    try:
        if kind == "text":
            return read_text(path)
        with open_image(path) as image:
            return to_rgb(image)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is not a readable {kind}: {error}") from error
