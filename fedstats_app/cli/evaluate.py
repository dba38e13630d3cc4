"""`fedstats evaluate`: accuracy, ranking, confusion matrix and calibration of a head on labelled images or texts."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedstats_app.cli.classifier import calibration_note, load_classifier
from fedstats_app.cli.errors import CommandError
from fedstats_app.cli.progress import counted, told
from fedstats_app.cli.sample_files import readable, tell_unreadable
from fedstats_app.cli.text import WIDTH, printable, table
from fedstats_app.data import Dataset, load_dataset
from fedstats_app.data.clients import data_spec
from fedstats_app.grid.progress import Progress
from fedstats_app.heads import CalibrationSums, ConfusionMatrix, MarginHistograms, margin_bins
from fedstats_app.report.classifier import Classifier
from fedstats_app.report.method_result import wilson_interval
from fedstats_app.report.text_columns import percent
from fedstats_app.storage.files import to_json

# Scores of so many images are in memory at a time.
CHUNK = 1024
# Wider confusion matrices do not fit a terminal; of them the pairs confused most often are shown.
MATRIX_CLASSES = 12
PAIRS_SHOWN = 10
_NAME_WIDTH = 30
_HEADING_WIDTH = 6


@dataclass(frozen=True)
class Evaluation:
    """What a head made of a data set: counts, and sums at the head's own temperature."""

    confusion: ConfusionMatrix
    margins: MarginHistograms
    calibration: CalibrationSums
    unreadable: dict[str, str]


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
        return _evaluate(arguments, progress)


def _evaluate(arguments: argparse.Namespace, progress: Progress) -> int:
    with progress.doing("reading the list of samples"):
        dataset = _labelled(arguments.folder, arguments.folder_levels)
    with progress.doing("loading the network and the head"):
        classifier = load_classifier(arguments)
    if dataset.kind != classifier.kind:
        raise CommandError(
            f"head {classifier.method} classifies {classifier.kind}s, {dataset.name} has {dataset.kind}s"
        )
    aligned = align_classes(dataset, classifier.class_names)
    evaluation = evaluate(classifier, aligned, progress)
    if evaluation.confusion.num_examples == 0:
        name, reason = next(iter(evaluation.unreadable.items()))
        raise CommandError(
            f"none of {len(dataset)} {dataset.kind}s can be read; {printable(name)}: {printable(reason, 1000)}"
        )
    if arguments.json:
        print(to_json(_document(arguments, classifier, aligned, evaluation)))
    else:
        print("\n\n".join(_sections(classifier, aligned, evaluation)))
    return tell_unreadable("evaluate", evaluation.unreadable)


def _labelled(path: str, levels: str) -> Dataset:
    spec = data_spec(str(Path(path).expanduser().absolute()))
    test = load_dataset(spec, "test", folder_levels=levels)
    return load_dataset(spec, "train", folder_levels=levels) if test is None else test


def align_classes(dataset: Dataset, class_names: Sequence[str]) -> Dataset:
    """Return the data set with labels that number a head's classes; they are matched by name.

    Raises
    ------
    CommandError
        If there are samples of a class that the head does not have; the message shows both lists.
    """
    present = [dataset.class_names[index] for index in sorted({int(label) for label in dataset.labels})]
    only_here = [name for name in present if name not in set(class_names)]
    if only_here:
        only_head = [name for name in class_names if name not in set(present)]
        folded = {name.casefold().strip(): name for name in class_names}
        close = [(name, folded[key]) for name in only_here if (key := name.casefold().strip()) in folded]
        hint = "".join(f"; {here!r} may be the head's {head!r}" for here, head in close[:3])
        raise CommandError(
            f"{dataset.name} has {dataset.kind}s of {len(only_here)} classes that the head does not know{hint}. "
            f"Folders must be named as the head's classes are.\n  only in the folder: {_listed(only_here)}\n"
            f"  only in the head:   {_listed(only_head)}"
        )
    return dataset.with_class_names(class_names)


def _listed(names: Sequence[str], limit: int = 30) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(repr(name) for name in names[:limit]) or "none") + more


def evaluate(classifier: Classifier, dataset: Dataset, progress: Progress | None = None) -> Evaluation:
    """Score a classifier on a data set that has its classes.

    Parameters
    ----------
    classifier : Classifier
        With C classes.
    dataset : Dataset
        With the same classes in the same order.
    progress : Progress, optional
        Is told how many samples are done.

    Returns
    -------
    Evaluation
        The calibration's sums are of scores divided by the head's temperature, at temperature 1.
    """
    num_classes = len(classifier.class_names)
    confusion, margins = ConfusionMatrix.zeros(num_classes), MarginHistograms.zeros(num_classes)
    calibration = CalibrationSums.zeros((1.0,))
    unreadable: dict[str, str] = {}
    labels = torch.tensor(dataset.labels)
    with (progress or Progress()).doing(f"{{done}} of {{total}} {dataset.kind}s", len(dataset)) as step:
        for start in range(0, len(dataset), CHUNK):
            chunk, read = range(start, min(start + CHUNK, len(dataset))), list[int]()
            samples = readable(dataset, chunk, read, unreadable)
            scores = classifier.scores(counted(samples, step))
            step.at(chunk.stop)
            confusion += ConfusionMatrix.from_predictions(labels[read], scores.argmax(dim=1), num_classes)
            margins += MarginHistograms.from_bins(margin_bins(scores), labels[read])
            calibration += CalibrationSums.from_logits(scores / classifier.temperature, labels[read], (1.0,))
    return Evaluation(confusion, margins, calibration, unreadable)


def _sections(classifier: Classifier, dataset: Dataset, evaluation: Evaluation) -> Iterator[str]:
    confusion, margins, calibration = evaluation.confusion, evaluation.margins, evaluation.calibration
    low, high = wilson_interval(confusion.num_correct, confusion.num_examples)
    unreadable = f", {len(evaluation.unreadable)} could not be read" if evaluation.unreadable else ""
    yield (
        f"head {classifier.method} on {confusion.num_examples} {dataset.kind}s of {printable(dataset.name, 1000)}"
        f"{unreadable}\n"
        f"accuracy {percent(confusion.accuracy)}, 95% interval {percent(low)} to {percent(high)}\n"
        f"balanced accuracy {percent(confusion.macro_accuracy)}; macro F1 {percent(confusion.macro_f1)}; "
        f"macro AUROC {_area(margins.macro_auroc)}\n"
        f"expected calibration error {calibration.expected_calibration_error(1.0):.4f}; negative log-likelihood "
        f"{calibration.mean_nll(1.0):.4f}\n{calibration_note(classifier)}"
    )
    names = [printable(name, _NAME_WIDTH) for name in classifier.class_names]
    numbers = confusion.matrix.sum(dim=1).tolist()
    by_class = (confusion.per_class_accuracy, confusion.per_class_specificity, confusion.per_class_f1)
    columns = zip(
        names, numbers, *(shares.tolist() for shares in by_class), margins.per_class_auroc.tolist(), strict=True
    )
    rows = [
        (name, str(number), *map(percent, shares), _area(area)) for name, number, *shares, area in columns if number
    ]
    yield table(("class", f"{dataset.kind}s", "sensitivity", "specificity", "F1", "AUROC"), rows)
    if absent := [name for name, number in zip(names, numbers, strict=True) if not number]:
        listed = printable(", ".join(absent[:10]), WIDTH - 50)
        yield f"no {dataset.kind} of {len(absent)} of the head's classes: {listed}"
    yield _matrix(names, confusion) if len(names) <= MATRIX_CLASSES else _pairs(names, confusion)


def _area(area: float) -> str:
    return "-" if math.isnan(area) else f"{area:.4f}"


def _matrix(names: Sequence[str], confusion: ConfusionMatrix) -> str:
    short = [name[:_HEADING_WIDTH] for name in names]
    rows = [(name, *(str(count) for count in row)) for name, row in zip(names, confusion.matrix.tolist(), strict=True)]
    return "rows: true class, columns: predicted class\n" + table(("", *short), rows)


def _pairs(names: Sequence[str], confusion: ConfusionMatrix) -> str:
    pairs = confusion.confused_pairs()
    if not pairs:
        return "nothing was taken for another class"
    rows = [(names[true], names[other], str(count)) for true, other, count in pairs[:PAIRS_SHOWN]]
    return f"confused most often, of {len(pairs)} pairs\n" + table(("true class", "taken for", "times"), rows, left=2)


def _document(
    arguments: argparse.Namespace, classifier: Classifier, dataset: Dataset, evaluation: Evaluation
) -> dict[str, object]:
    confusion, names = evaluation.confusion, classifier.class_names
    cells = confusion.matrix.nonzero().tolist()
    return {
        "run_folder": arguments.run_folder,
        "method": classifier.method,
        "data": dataset.name,
        "num_examples": confusion.num_examples,
        "accuracy": confusion.accuracy,
        "accuracy_interval": wilson_interval(confusion.num_correct, confusion.num_examples),
        "macro_accuracy": confusion.macro_accuracy,
        "macro_f1": confusion.macro_f1,
        "macro_auroc": evaluation.margins.macro_auroc,
        "macro_auroc_error": evaluation.margins.macro_auroc_error,
        "calibrated": bool(classifier.calibrated_on),
        "calibrated_on": classifier.calibrated_on,
        "temperature": classifier.temperature,
        "expected_calibration_error": evaluation.calibration.expected_calibration_error(1.0),
        "negative_log_likelihood": evaluation.calibration.mean_nll(1.0),
        "classes": [_of_class(evaluation, index, name) for index, name in enumerate(names)],
        "confusion": [
            {"true": names[true], "predicted": names[other], "count": int(confusion.matrix[true, other])}
            for true, other in cells
        ],
        "unreadable": [{"path": path, "reason": reason} for path, reason in evaluation.unreadable.items()],
    }


def _of_class(evaluation: Evaluation, index: int, name: str) -> dict[str, object]:
    """Return what is known of one class; intervals are Wilson's, at 95%."""
    matrix = evaluation.confusion.matrix
    number, right, taken = (int(counts[index]) for counts in (matrix.sum(dim=1), matrix.diagonal(), matrix.sum(dim=0)))
    others = int(matrix.sum()) - number
    return {
        "class": name,
        "num_examples": number,
        "accuracy": float(evaluation.confusion.per_class_accuracy[index]),
        "accuracy_interval": wilson_interval(right, number) if number else None,
        "specificity": float(evaluation.confusion.per_class_specificity[index]),
        "specificity_interval": wilson_interval(others - (taken - right), others) if others else None,
        "f1": float(evaluation.confusion.per_class_f1[index]),
        "auroc": float(evaluation.margins.per_class_auroc[index]),
    }
