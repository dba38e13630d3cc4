"""`fedstats predict`: the likeliest classes of image files, texts, or the rows of a table."""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator, Sequence

from fedstats_app.base.files import to_json
from fedstats_app.base.progress import Progress
from fedstats_app.cli import CommandError
from fedstats_app.cli.inputs import (
    calibration_note,
    features_in_chunks,
    find_samples,
    head_entries,
    load_classifier,
    refuse_absent,
    tell_unreadable,
)
from fedstats_app.cli.terminal import WIDTH, printable, told
from fedstats_app.data import Dataset
from fedstats_app.data.loading import unlabelled_texts
from fedstats_app.heads.targets import half_width
from fedstats_app.report.classifier import Classifier
from fedstats_app.report.text_columns import percent

# So many samples at a time, so that results appear early; in memory there is one image and a batch of small ones.
CHUNK = 256
_CLASS_WIDTH = 40
# Where a cell begins like this, a spreadsheet computes.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_PERCENT_WIDTH = 8

Ranking = list[tuple[str, float]]
# Name, classes, and whether the sample is unlike the training data, where the head can tell.
Prediction = tuple[str, Ranking, bool | None]
_UNLIKE = "unlike the training data"


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
        promise = _promise(classifier, arguments.coverage)
        with progress.doing("looking for samples"):
            datasets, unreadable = find_samples(arguments.paths, classifier.kind, arguments)
        datasets.append(unlabelled_texts(arguments.text))
        predictions = itertools.chain.from_iterable(
            _predictions(classifier, dataset, arguments, unreadable, progress) for dataset in datasets
        )
        if classifier.targets:
            _write_targets(arguments, classifier, datasets, unreadable, progress)
        elif arguments.csv:
            top = 1 if promise else min(arguments.top, len(classifier.class_names))
            _write_csv(predictions, top, with_set=bool(promise), measured=classifier.distance_limit is not None)
        elif arguments.json:
            found = [
                {
                    "path": path,
                    "top": [{"class": name, "probability": value} for name, value in ranking],
                    **({} if unlike is None else {"unlike": unlike}),
                }
                for path, ranking, unlike in predictions
            ]
            reasons = [{"path": path, "reason": reason} for path, reason in unreadable.items()]
            head = head_entries(arguments, classifier) | ({"coverage": arguments.coverage} if promise else {})
            print(to_json(head | {"predictions": found, "unreadable": reasons}))
        else:
            print(f"head {classifier.method}; {promise or calibration_note(classifier)}")
            for path, ranking, unlike in predictions:
                _print_lines(path, ranking)
                if unlike:
                    print(f"  {_UNLIKE}: farther from it than 99 % of the test samples")
    return tell_unreadable("predict", unreadable)


def _promise(classifier: Classifier, coverage: float | None) -> str:
    """Say what a set of classes promises; "" where none is wanted."""
    if coverage is None:
        return ""
    if classifier.targets:
        raise CommandError(f"--coverage is for one class a sample, head {classifier.method} gives {classifier.targets}")
    if classifier.margins is None:
        raise CommandError(
            f"head {classifier.method} was scored on no samples, so that no set has a promised coverage: give the run "
            "a test-dataset, or fedstats merge --test"
        )
    classifier.margins.lowest_bins(coverage)  # refuses before a sample is read
    share = f"{100 * coverage:g} % of samples like the {classifier.margins.samples}"
    return f"with the right class among those named for {share}"


def _predictions(
    classifier: Classifier,
    dataset: Dataset,
    arguments: argparse.Namespace,
    unreadable: dict[str, str],
    progress: Progress,
) -> Iterator[Prediction]:
    for features, read in features_in_chunks(dataset, CHUNK, classifier, unreadable, progress):
        rankings = classifier.top(features, arguments.top, coverage=arguments.coverage)
        measured = classifier.distance_limit is not None
        unlike = classifier.unlike(features).tolist() if measured else itertools.repeat(None, len(features))
        yield from zip(map(dataset.sample_name, read), rankings, unlike, strict=True)


def plain(value: object) -> object:
    """Put an apostrophe before a text that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value


def _write_targets(
    arguments: argparse.Namespace,
    classifier: Classifier,
    datasets: Sequence[Dataset],
    unreadable: dict[str, str],
    progress: Progress,
) -> None:
    """Print the labels of each sample that score enough, or its numbers with the interval that holds 90 % of such."""
    labels, head = classifier.targets == "labels", classifier.head
    # A number that was dropped, or that no sample had, has no value; the probability of such a label is 0.
    places = [place for place, known in enumerate(head.present.tolist()) if known or labels]
    names = [classifier.class_names[place] for place in places]
    widths = [half_width(deviation) for place, deviation in enumerate(head.report.deviations) if place in places]

    def found() -> Iterator[tuple[str, list[float]]]:
        for dataset in datasets:
            for features, read in features_in_chunks(dataset, CHUNK, classifier, unreadable, progress):
                values = classifier.probabilities(features) if labels else classifier.scores(features)
                yield from zip(map(dataset.sample_name, read), values[:, places].tolist(), strict=True)

    def held(values: list[float]) -> list[str]:
        return [name for name, value in zip(names, values, strict=True) if value >= 0.5]

    def bounds(values: list[float]) -> list[tuple[float, float, float]]:
        return [(value, value - half, value + half) for value, half in zip(values, widths, strict=True)]

    if arguments.json:
        entries = [
            {
                "path": path,
                **({"labels": held(values)} if labels else {}),
                "probabilities" if labels else "numbers": dict(zip(names, values, strict=True)),
            }
            for path, values in found()
        ]
        reasons = [{"path": path, "reason": reason} for path, reason in unreadable.items()]
        document = {"targets": classifier.targets, "predictions": entries, "unreadable": reasons}
        print(to_json(head_entries(arguments, classifier) | document))
    elif arguments.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        more = [part for name in names for part in (name, f"{name} from", f"{name} to")]
        writer.writerow(map(plain, ["sample", "labels", *names] if labels else ["sample", *more]))
        for path, values in found():
            cells = ["|".join(held(values)), *values] if labels else itertools.chain(*bounds(values))
            writer.writerow(map(plain, [path, *cells]))
    elif labels:
        print(f"head {classifier.method}; {calibration_note(classifier)}")
        for path, values in found():
            ranked = sorted(zip(names, values, strict=True), key=lambda entry: -entry[1])
            _print_lines(path, [entry for entry in ranked if entry[1] >= 0.5] or [("none", 1.0 - ranked[0][1])])
    else:
        print(f"head {classifier.method}; numbers, and what holds 90 % of such")
        for path, values in found():
            shown = zip(names, bounds(values), strict=True)
            text = "; ".join(f"{name} {value:.4g} ({low:.4g} to {high:.4g})" for name, (value, low, high) in shown)
            print(f"{printable(path, WIDTH // 2)}  {text}")


def _write_csv(predictions: Iterator[Prediction], top: int, *, with_set: bool, measured: bool) -> None:
    """Print a line per sample as soon as it is there, its likeliest class first; a set has "|" between its classes."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    more = (f"{column}_{place}" for place in range(2, top + 1) for column in ("class", "probability"))
    writer.writerow(["sample", "class", "probability", *more, *["set"] * with_set, *["unlike"] * measured])
    for name, ranking, unlike in predictions:
        classes = ["|".join(of_set for of_set, _ in ranking)] if with_set else []
        writer.writerow(
            map(plain, [name, *itertools.chain.from_iterable(ranking[:top]), *classes, *[unlike] * measured])
        )


def _print_lines(path: str, ranking: Ranking) -> None:
    """Print a line per class, the path beside the first."""
    path_width = WIDTH - _CLASS_WIDTH - _PERCENT_WIDTH - 4
    shown = printable(path, path_width)
    for name, probability in ranking:
        label = printable(name, _CLASS_WIDTH)
        print(f"{shown:{path_width}}  {label:{_CLASS_WIDTH}}  {percent(probability):>{_PERCENT_WIDTH}}")
        shown = ""
