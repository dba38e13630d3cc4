"""`fedstats predict`: the likeliest classes of image files, texts, or the rows of a table."""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator

from fedstats_app.base.files import to_json
from fedstats_app.base.progress import Progress
from fedstats_app.cli import CommandError
from fedstats_app.cli.inputs import (
    calibration_note,
    find_samples,
    head_entries,
    in_chunks,
    load_classifier,
    refuse_absent,
    tell_unreadable,
)
from fedstats_app.cli.terminal import WIDTH, printable, told
from fedstats_app.data import Dataset
from fedstats_app.data.loading import unlabelled_texts
from fedstats_app.report.classifier import Classifier
from fedstats_app.report.text_columns import percent

# So many samples at a time, so that results appear early; in memory there is one image and a batch of small ones.
CHUNK = 256
_CLASS_WIDTH = 40
# Where a cell begins like this, a spreadsheet computes.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_PERCENT_WIDTH = 8

Ranking = list[tuple[str, float]]


def run(arguments: argparse.Namespace) -> int:
    """Print the classes of every sample; 1 if a file could not be read.

    Raises
    ------
    CommandError, FileNotFoundError, ValueError
        If the head cannot be loaded, nothing is named to classify, or what is not there, or texts are given to a head
        for images.
    """
    if not (arguments.paths or arguments.text):
        raise CommandError("name at least one PATH or --text")
    if arguments.csv and arguments.json:
        raise CommandError("choose --csv or --json, not both")
    if not arguments.text:
        refuse_absent(arguments.paths)
    with told("predict") as progress:
        with progress.doing("loading the network and the head"):
            classifier = load_classifier(arguments)
        if arguments.text and classifier.kind == "image":
            raise CommandError(f"head {classifier.method} is for images: --text is for heads that classify texts")
        with progress.doing("looking for samples"):
            datasets, unreadable = find_samples(arguments.paths, classifier.kind, arguments)
        datasets.append(unlabelled_texts(arguments.text))
        predictions = itertools.chain.from_iterable(
            _predictions(classifier, dataset, arguments.top, unreadable, progress) for dataset in datasets
        )
        if arguments.csv:
            _write_csv(predictions, min(arguments.top, len(classifier.class_names)))
        elif arguments.json:
            found = [
                {"path": path, "top": [{"class": name, "probability": value} for name, value in ranking]}
                for path, ranking in predictions
            ]
            reasons = [{"path": path, "reason": reason} for path, reason in unreadable.items()]
            print(to_json(head_entries(arguments, classifier) | {"predictions": found, "unreadable": reasons}))
        else:
            print(f"head {classifier.method}; {calibration_note(classifier)}")
            for path, ranking in predictions:
                _print_lines(path, ranking)
    return tell_unreadable("predict", unreadable)


def _predictions(
    classifier: Classifier, dataset: Dataset, top: int, unreadable: dict[str, str], progress: Progress
) -> Iterator[tuple[str, Ranking]]:
    for samples, read in in_chunks(dataset, CHUNK, unreadable, progress):
        rankings = classifier.top(samples, top)
        yield from zip(map(dataset.sample_name, read), rankings, strict=True)


def plain(value: object) -> object:
    """Put an apostrophe before a text that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value


def _write_csv(predictions: Iterator[tuple[str, Ranking]], top: int) -> None:
    """Print a line per sample as soon as it is there, its likeliest class first."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    more = (f"{column}_{place}" for place in range(2, top + 1) for column in ("class", "probability"))
    writer.writerow(["sample", "class", "probability", *more])
    for name, ranking in predictions:
        writer.writerow(map(plain, [name, *itertools.chain.from_iterable(ranking)]))


def _print_lines(path: str, ranking: Ranking) -> None:
    """Print a line per class, the path beside the first."""
    path_width = WIDTH - _CLASS_WIDTH - _PERCENT_WIDTH - 4
    shown = printable(path, path_width)
    for name, probability in ranking:
        label = printable(name, _CLASS_WIDTH)
        print(f"{shown:{path_width}}  {label:{_CLASS_WIDTH}}  {percent(probability):>{_PERCENT_WIDTH}}")
        shown = ""
