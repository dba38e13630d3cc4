"""`fedstats predict`: the likeliest classes of image files, text files or texts."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

from fedstats_app.classifier import Classifier
from fedstats_app.cli.classifier import calibration_note, load_classifier
from fedstats_app.cli.errors import CommandError
from fedstats_app.cli.progress import counted, told
from fedstats_app.cli.sample_files import as_dataset, find_files, readable, tell_unreadable, texts_as_dataset
from fedstats_app.cli.text import WIDTH, percent, printable
from fedstats_app.data import Dataset
from fedstats_app.grid.progress import Progress
from fedstats_app.storage.files import to_json

# So many samples at a time, so that results appear early; in memory there is one image and a batch of small ones.
CHUNK = 256
_CLASS_WIDTH = 40
_PERCENT_WIDTH = 8

Ranking = list[tuple[str, float]]


def run(arguments: argparse.Namespace) -> int:
    """Print the classes of every sample; 1 if a file could not be read.

    Raises
    ------
    CommandError, FileNotFoundError, ValueError
        If the head cannot be loaded, nothing is named to classify, or texts are given to a head for images.
    """
    if not (arguments.paths or arguments.text):
        raise CommandError("name at least one PATH or --text")
    with told("predict") as progress:
        return _predict(arguments, progress)


def _predict(arguments: argparse.Namespace, progress: Progress) -> int:
    with progress.doing("loading the network and the head"):
        classifier = load_classifier(arguments)
    if arguments.text and classifier.kind == "image":
        raise CommandError(f"head {classifier.method} is for images: --text is for heads that classify texts")
    with progress.doing("looking for files"):
        paths, unreadable = find_files(arguments.paths, classifier.kind)
    predictions = itertools.chain(
        _predictions(classifier, as_dataset(paths, classifier.kind), arguments.top, unreadable, progress),
        _predictions(classifier, texts_as_dataset(arguments.text), arguments.top, unreadable, progress),
    )
    if arguments.json:
        print(_document(arguments, classifier, list(predictions), unreadable))
    else:
        print(f"head {classifier.method}; {calibration_note(classifier)}")
        for path, ranking in predictions:
            print(_lines(path, ranking))
    return tell_unreadable("predict", unreadable)


def _predictions(
    classifier: Classifier, dataset: Dataset, top: int, unreadable: dict[str, str], progress: Progress
) -> Iterator[tuple[str, Ranking]]:
    with progress.doing(f"{{done}} of {{total}} {dataset.kind}s", len(dataset)) as step:
        for start in range(0, len(dataset), CHUNK):
            chunk, read = range(start, min(start + CHUNK, len(dataset))), list[int]()
            rankings = classifier.top(counted(readable(dataset, chunk, read, unreadable), step), top)
            step.at(chunk.stop)
            for index, ranking in zip(read, rankings, strict=True):
                yield dataset.sample_name(index), ranking


def _lines(path: str, ranking: Ranking) -> str:
    """Return a line per class, the path beside the first."""
    path_width = WIDTH - _CLASS_WIDTH - _PERCENT_WIDTH - 4
    lines: list[str] = []
    for name, probability in ranking:
        shown = printable(path, path_width) if not lines else ""
        label = printable(name, _CLASS_WIDTH)
        lines.append(f"{shown:{path_width}}  {label:{_CLASS_WIDTH}}  {percent(probability):>{_PERCENT_WIDTH}}")
    return "\n".join(lines)


def _document(
    arguments: argparse.Namespace,
    classifier: Classifier,
    predictions: list[tuple[str, Ranking]],
    unreadable: dict[str, str],
) -> str:
    return to_json(
        {
            "run_folder": arguments.run_folder,
            "method": classifier.method,
            "calibrated": bool(classifier.calibrated_on),
            "calibrated_on": classifier.calibrated_on,
            "temperature": classifier.temperature,
            "predictions": [
                {"path": path, "top": [{"class": name, "probability": value} for name, value in ranking]}
                for path, ranking in predictions
            ],
            "unreadable": [{"path": path, "reason": reason} for path, reason in unreadable.items()],
        }
    )
