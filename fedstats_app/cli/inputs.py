"""The head and the samples that a command's arguments name: image or text files, folders, tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from fedstats_app.backbones.feature_reader import read_ahead
from fedstats_app.backbones.weights import WeightsError
from fedstats_app.base.files import read_json_file
from fedstats_app.base.progress import Progress
from fedstats_app.base.runs import run_named
from fedstats_app.cli import CommandError
from fedstats_app.cli.terminal import counted, printable
from fedstats_app.data import Dataset, Sample, UnreadableSampleError
from fedstats_app.data.columns import Reading
from fedstats_app.data.dataset import Kind
from fedstats_app.data.folder import to_convert
from fedstats_app.data.layout import SUFFIXES, visible_files
from fedstats_app.data.loading import TABLES, unlabelled_files, unlabelled_table
from fedstats_app.report.classifier import Classifier, load
from fedstats_app.settings.app_config import AppConfig


def load_classifier(arguments: argparse.Namespace, batch_size: Literal["auto"] | None = None) -> Classifier:
    """Load the head and its network: on the CPU, unless the arguments name a device, with their batch size or this.

    Raises
    ------
    CommandError
        If the network's weights or a library that it needs are missing.
    FileNotFoundError, ValueError
        As `fedstats_app.load`.
    """
    given = {name: value for name, value in vars(arguments).items() if name in ("device", "batch_size", "engine")}
    options: dict[str, Any] = {"device": "cpu", **given}
    options["batch_size"] = given.get("batch_size") or batch_size
    try:
        return load(arguments.run_folder, arguments.method or None, weights=arguments.weights or None, **options)
    except (WeightsError, ModuleNotFoundError) as error:
        raise CommandError(str(error)) from error


def calibration_note(classifier: Classifier) -> str:
    """Say in a line whether probabilities can be taken at their word; of labels or numbers, what there is instead."""
    if classifier.targets:
        return "labels from 50 % on" if classifier.targets == "labels" else "numbers"
    if classifier.calibrated_on:
        return f"probabilities calibrated on {classifier.calibrated_on} (temperature {classifier.temperature:.4g})"
    return "probabilities UNCALIBRATED: this head was saved without a calibration, only the order of classes counts"


def head_entries(arguments: argparse.Namespace, classifier: Classifier) -> dict[str, object]:
    """Begin a JSON document with the entries of the head."""
    return {
        "run_folder": arguments.run_folder,
        "method": classifier.method,
        "calibrated": bool(classifier.calibrated_on),
        "calibrated_on": classifier.calibrated_on,
        "temperature": classifier.temperature,
    }


def find_samples(
    names: Sequence[str], kind: Kind, arguments: argparse.Namespace
) -> tuple[list[Dataset], dict[str, str]]:
    """Find the samples that names on the command line stand for.

    These are tables (`fedstats_app.data.loading.TABLES`), other files, taken whatever their suffix, and folders,
    searched at all depths for files that end as images, or texts, do. Hidden files and folders in them are passed over.

    Returns
    -------
    datasets : list of Dataset
        In the order of the names, sorted within a folder.
    problems : dict
        From a name that stands for nothing to the reason.

    Raises
    ------
    ValueError
        If a table cannot be read or it is not clear which column is meant.
    """
    found: list[Dataset] = []
    problems: dict[str, str] = {}
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            files = sorted(file for file in visible_files(path) if file.suffix.lower() in SUFFIXES[kind])
            found.append(unlabelled_files(files, kind))
            if not files:
                hint = to_convert(file.name for file in visible_files(path)) if kind == "image" else ""
                problems[name] = f"no {kind} in this folder; {kind}s end in {', '.join(sorted(SUFFIXES[kind]))}{hint}"
        elif not path.is_file():
            # Not opened to find out: a pipe would be waited for.
            problems[name] = "not a file" if path.exists() else "no such file or folder"
        elif path.suffix.lower() in TABLES:
            wanted = Reading(arguments.image_column, arguments.text_column)
            settings = record_of_run(arguments.run_folder).get("run_config", {})
            of_run = Reading(settings.get("image-column", ""), settings.get("text-column", ""))
            found.append(unlabelled_table(path, kind, wanted, of_run))
        else:
            found.append(unlabelled_files([path], kind))
    return found, problems


def record_of_run(run_folder: str) -> dict[str, Any]:
    """Read the config.json of a run folder, or of the run of that name; empty if there is none."""
    path = Path(run_named(run_folder)).expanduser() / "config.json"
    return read_json_file(path) if path.is_file() else {}


def targets_of_run(run_folder: str) -> dict[str, Any]:
    """Read how a run's settings say that a table has several labels or numbers a sample."""
    record = record_of_run(run_folder)
    if not record.get("targets"):
        return {}
    reading = AppConfig.from_run_config(record["run_config"]).data.reading
    return {name: value for name, value in reading.items() if name not in ("image_column", "text_column")}


def refuse_absent(names: Sequence[str]) -> None:
    """Say that there is nothing to read before anything slow begins.

    Raises
    ------
    CommandError
        If names are given and none of them is a file or a folder.
    """
    paths = [Path(name).expanduser() for name in names]
    if paths and not any(path.exists() for path in paths):
        more = f" (and none of {len(names)} that are named)" if len(names) > 1 else ""
        raise CommandError(f"{printable(names[0], 1000)}: no such file or folder{more}")


def features_in_chunks(
    dataset: Dataset,
    size: int,
    classifier: Classifier,
    unreadable: dict[str, str],
    progress: Progress,
    look: Callable[[int, Sample], None] = lambda index, sample: None,
) -> Iterator[tuple[Tensor, list[int]]]:
    """Compute the features of at most ``size`` samples at a time.

    Parameters
    ----------
    dataset : Dataset
        Of the classifier's kind.
    size : int
        Most samples of a chunk.
    classifier : Classifier
        Whose network computes them.
    unreadable : dict
        Gets the name of every sample that cannot be read, and the reason.
    progress : Progress
        Whose lines say how many are done.
    look : callable
        Given the index of each sample and the sample, before its features, by one of several threads.

    Yields
    ------
    features : Tensor
        (b, d) float32.
    indices : list of int
        b, of the readable samples.
    """
    backbone = classifier.backbone

    def made(index: int, sample: Sample) -> Any:
        look(index, sample)
        return backbone.input_of(sample)

    def inputs(chunk: range, read: list[int]) -> Iterator[Any]:
        for index, found in zip(chunk, read_ahead(dataset, chunk, made, backbone.input_size), strict=True):
            if isinstance(found, UnreadableSampleError):
                unreadable[found.name] = found.reason
            else:
                read.append(index)
                yield found

    with progress.doing(f"{{done}} of {{total}} {dataset.kind}s", len(dataset)) as step:
        for start in range(0, len(dataset), size):
            chunk, read = range(start, min(start + size, len(dataset))), list[int]()
            yield classifier.features_of_inputs(counted(inputs(chunk, read), step)), read
            step.at(chunk.stop)


def tell_unreadable(command: str, unreadable: Mapping[str, str]) -> int:
    """Name on stderr what could not be read, and why; return the command's exit code."""
    for name, reason in unreadable.items():
        print(f"fedstats {command}: not read: {printable(name, 1000)}: {printable(reason, 1000)}", file=sys.stderr)
    return 1 if unreadable else 0
