"""`fedstats evaluate`: accuracy, ranking, confusion matrix and calibration of a head on labelled images or texts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstats_app.base.files import to_json
from fedstats_app.base.listing import first_few
from fedstats_app.base.progress import Progress
from fedstats_app.cli import CommandError
from fedstats_app.cli.inputs import (
    calibration_note,
    features_in_chunks,
    head_entries,
    load_classifier,
    targets_of_run,
    tell_unreadable,
)
from fedstats_app.cli.terminal import WIDTH, printable, told
from fedstats_app.data import Dataset, load_dataset
from fedstats_app.data.clients import data_spec
from fedstats_app.heads import HeadScores
from fedstats_app.heads.target_scores import TargetScores
from fedstats_app.report.classifier import Classifier
from fedstats_app.report.method_result import quality, wilson_interval
from fedstats_app.report.tables import classes_table, confused_lines, heads_table, targets_table
from fedstats_app.report.text_columns import area, percent

# Images whose scores are in memory at a time.
CHUNK = 1024
_NAME_WIDTH = 30
_ALL_RIGHT = "nothing was taken for another class"


def run(arguments: argparse.Namespace) -> int:
    """Print the evaluation; 1 if a sample could not be read.

    Raises
    ------
    CommandError
        If the data are of another kind than the head's or their classes not among it, if no sample can be read, or the
        head cannot be loaded.
    FileNotFoundError, ValueError
        As `fedstats_app.load` and `fedstats_app.data.load_dataset`.
    """
    with told("evaluate") as progress:
        with progress.doing("reading the list of samples"):
            spec, levels = data_spec(str(Path(arguments.folder).expanduser().absolute())), arguments.folder_levels
            reading = {**targets_of_run(arguments.run_folder), "folder_levels": levels}
            dataset = load_dataset(spec, "test", **reading)
            dataset = load_dataset(spec, "train", **reading) if dataset is None else dataset
        with progress.doing("loading the network and the head"):
            classifier = load_classifier(arguments, "auto")
        if dataset.kind != classifier.kind:
            raise CommandError(
                f"head {classifier.method} classifies {classifier.kind}s, {dataset.name} has {dataset.kind}s"
            )
        if classifier.targets or dataset.targets is not None:
            return _evaluate_targets(arguments, classifier, dataset, progress)
        dataset = align_classes(dataset, classifier.class_names)
        unreadable: dict[str, str] = {}
        scores = evaluate(classifier, dataset, unreadable, progress)
    if scores.confusion.num_examples == 0:
        name, reason = next(iter(unreadable.items()))
        raise CommandError(
            f"none of {len(dataset)} {dataset.kind}s can be read; {printable(name)}: {printable(reason, 1000)}"
        )
    if arguments.json:
        document = head_entries(arguments, classifier) | {"data": dataset.name} | _document(scores, classifier)
        document["unreadable"] = [{"path": path, "reason": reason} for path, reason in unreadable.items()]
        print(to_json(document))
    else:
        print("\n\n".join(_sections(classifier, dataset, scores, len(unreadable))))
    return tell_unreadable("evaluate", unreadable)


def _evaluate_targets(
    arguments: argparse.Namespace, classifier: Classifier, dataset: Dataset, progress: Progress
) -> int:
    """Print how good a head of several labels or numbers is."""
    kind, unreadable = classifier.targets, dict[str, str]()
    if dataset.targets is None or dataset.targets.kind != kind:
        has = "one class" if dataset.targets is None else dataset.targets.kind
        raise CommandError(f"head {classifier.method} is of {kind or 'one class'} a sample, {dataset.name} has {has}")
    targets = dataset.targets.renamed(dataset.class_names, classifier.class_names)
    scores = TargetScores.zeros(kind, len(classifier.class_names))
    for features, read in features_in_chunks(dataset, CHUNK, classifier, unreadable, progress):
        found = classifier.scores(features)
        own = torch.from_numpy(targets.subset(np.array(read, dtype=np.int64)).values)
        scores += TargetScores.of(kind, found, own, classifier.head)
    entry = {"targets": scores.measures()}
    if arguments.json:
        print(to_json(head_entries(arguments, classifier) | {"data": dataset.name, **entry["targets"]}))
    else:
        print(f"head {classifier.method} on {scores.num_examples} {dataset.kind}s of {printable(dataset.name, 1000)}")
        print(heads_table({classifier.method: entry}, 0))
        print(targets_table(entry, classifier.class_names))
    return tell_unreadable("evaluate", unreadable)


def align_classes(dataset: Dataset, class_names: Sequence[str]) -> Dataset:
    """Give labels the numbers of a head's classes, matched by name.

    Raises
    ------
    CommandError
        If there are samples of a class that the head does not have; the message shows both lists.
    """
    present = [dataset.class_names[index] for index in sorted({int(label) for label in dataset.labels})]
    only_here = [name for name in present if name not in set(class_names)]
    if only_here:
        only_head = [name for name in class_names if name not in set(present)]
        raise CommandError(
            f"{dataset.name} has {dataset.kind}s of {len(only_here)} classes that the head does not know. "
            f"Folders must be named as the head's classes are.\n"
            f"  only in the folder: {first_few(map(repr, only_here), 30)}\n"
            f"  only in the head:   {first_few(map(repr, only_head), 30) or 'none'}"
        )
    return dataset.with_class_names(class_names)


def evaluate(classifier: Classifier, dataset: Dataset, unreadable: dict[str, str], progress: Progress) -> HeadScores:
    """Score a classifier on a data set of its classes in its order, calibration at the head's own temperature.

    `unreadable` gets the name and the reason of every sample that cannot be read.
    """
    temperatures, labels = (classifier.temperature,), torch.tensor(dataset.labels)
    total = HeadScores.zeros(len(classifier.class_names), temperatures)
    for features, read in features_in_chunks(dataset, CHUNK, classifier, unreadable, progress):
        scores = classifier.scores(features)
        total.count(scores, labels[read], scores.argmax(dim=1))
    return total


def _sections(classifier: Classifier, dataset: Dataset, scores: HeadScores, num_unreadable: int) -> Iterator[str]:
    confusion, temperature, found = scores.confusion, classifier.temperature, quality(scores)
    low, high = found["accuracy_interval"]
    unreadable = f", {num_unreadable} could not be read" if num_unreadable else ""
    yield (
        f"head {classifier.method} on {confusion.num_examples} {dataset.kind}s of {printable(dataset.name, 1000)}"
        f"{unreadable}\n"
        f"accuracy {percent(confusion.accuracy)}, 95% interval {percent(low)} to {percent(high)}\n"
        f"balanced accuracy {percent(confusion.macro_accuracy)}; macro F1 {percent(confusion.macro_f1)}; "
        f"macro AUROC {area(found['macro_auroc'])}\n"
        f"expected calibration error {scores.calibration.expected_calibration_error(temperature):.4f}; "
        f"negative log-likelihood {scores.calibration.mean_nll(temperature):.4f}\n{calibration_note(classifier)}"
    )
    names = [printable(name, _NAME_WIDTH) for name in classifier.class_names]
    yield str(classes_table(found, names, dataset.kind))
    if absent := [name for name, number in zip(names, found["per_class_examples"], strict=True) if not number]:
        listed = printable(", ".join(absent[:10]), WIDTH - 50)
        yield f"no {dataset.kind} of {len(absent)} of the head's classes: {listed}"
    yield "\n".join(["confused most often", *confused_lines(found, names)] if found["most_confused"] else [_ALL_RIGHT])


def _document(scores: HeadScores, classifier: Classifier) -> dict[str, Any]:
    """Gather what is known, under the names in results.json, with Wilson's intervals at 95 % by class."""
    matrix, names = scores.confusion.matrix, classifier.class_names
    of_class, right, taken = matrix.sum(dim=1), matrix.diagonal(), matrix.sum(dim=0)
    others = matrix.sum() - of_class
    parts = {"accuracy": (right, of_class), "specificity": (others - (taken - right), others)}
    return {
        "class_names": names,
        "num_examples": scores.confusion.num_examples,
        **quality(scores),
        **{
            f"per_class_{measure}_interval": [
                wilson_interval(*pair) if pair[1] else None for pair in zip(*map(Tensor.tolist, part), strict=True)
            ]
            for measure, part in parts.items()
        },
        "expected_calibration_error": scores.calibration.expected_calibration_error(classifier.temperature),
        "negative_log_likelihood": scores.calibration.mean_nll(classifier.temperature),
        "confusion": [
            {"true": names[true], "predicted": names[other], "count": int(matrix[true, other])}
            for true, other in matrix.nonzero().tolist()
        ],
    }
