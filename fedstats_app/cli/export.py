"""`fedstats export`: a head with its network as an ONNX file, compared with torch before it is written."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

from fedstats_app.classifier import Classifier
from fedstats_app.cli.classifier import calibration_note, load_classifier
from fedstats_app.cli.errors import CommandError
from fedstats_app.cli.sample_files import as_dataset, find_files, readable, tell_unreadable
from fedstats_app.data import Sample, load_dataset
from fedstats_app.export.onnx_check import TOLERANCE, Agreement, compare
from fedstats_app.export.onnx_file import ExportError, OnnxModel, to_onnx
from fedstats_app.storage.files import to_json, write_atomically

# Of the built-in images, where none are named: they take seconds.
_FEW = 32
# As they are, 28 pixels a side, images are enlarged; so every other one is made larger than most networks' input.
_LARGE = (640, 480)
# For a language model, where no texts are named: empty, short, with more than ASCII, and longer than any limit.
_TEXTS = (
    "",
    "A film that nobody will remember, and rightly so.",
    "Shares fell by 3.5% after the bank's annual report (page 12).",
    "¿Qué? Zoë paid 20 € — naïvely, in Tōkyō \N{GRINNING FACE}",
    "One sentence after another makes a text that is too long. " * 500,
)


def run(arguments: argparse.Namespace) -> int:
    """Write the file and say what it is; 1 if a sample to compare on could not be read.

    Raises
    ------
    CommandError
        If there is nothing to do, the head cannot be loaded or exported, or torch and the file disagree.
    FileNotFoundError, ValueError
        As `fedstats_app.load`, or if there is nothing to compare on.
    """
    if arguments.onnx is None:
        raise CommandError("say what to write: --onnx")
    classifier = load_classifier(arguments)
    try:
        model = to_onnx(classifier)
    except ExportError as error:
        raise CommandError(str(error)) from error
    unreadable: dict[str, str] = {}
    agreement = compare(classifier, model, _samples(arguments.check, classifier, unreadable))
    _refuse_disagreement(agreement, unreadable)
    path = _path(arguments, classifier)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, model.content)
    tokenizer = path.with_name(f"{path.stem}.tokenizer.json")
    if model.tokenizer is not None:
        write_atomically(tokenizer, model.tokenizer.encode())
    document = {
        "onnx": str(path),
        "bytes": len(model.content),
        "method": classifier.method,
        "feed": model.preprocessing["feed"],
        "tokenizer": None if model.tokenizer is None else str(tokenizer),
        "num_compared": agreement.num_examples,
        "num_same_class": agreement.num_same,
        "max_difference": agreement.max_difference,
    }
    print(to_json(document) if arguments.json else "\n".join(_lines(document, classifier, model)))
    return tell_unreadable("export", unreadable)


def _path(arguments: argparse.Namespace, classifier: Classifier) -> Path:
    if arguments.onnx:
        path = Path(arguments.onnx).expanduser()
        return path / f"{classifier.method}.onnx" if path.is_dir() else path
    return Path(arguments.run_folder).expanduser() / "export" / f"{classifier.method}.onnx"


def _samples(named: str, classifier: Classifier, unreadable: dict[str, str]) -> Iterator[Sample]:
    if classifier.kind == "text" and not named:
        yield from _TEXTS
        return
    if named in ("", "builtin"):
        dataset = load_dataset("builtin", "test")
        assert dataset is not None  # noqa: S101  # it has a test split
        images = (dataset.sample(index) for index in range(len(dataset)))
        for index, image in enumerate(itertools.islice(images, None if named else _FEW)):
            yield image.resize(_LARGE) if index % 2 and not isinstance(image, str) else image
        return
    paths, problems = find_files([named], classifier.kind)
    unreadable.update(problems)
    files = as_dataset(paths, classifier.kind)
    yield from readable(files, range(len(files)), [], unreadable)


def _refuse_disagreement(agreement: Agreement, unreadable: dict[str, str]) -> None:
    if agreement.num_examples == 0:
        name, reason = next(iter(unreadable.items()))
        raise CommandError(f"there is nothing to compare on: {name}: {reason}")
    if not agreement.is_close:
        raise CommandError(
            f"not written: probabilities by ONNX Runtime and by torch differ by up to {agreement.max_difference:.2g} "
            f"on {agreement.num_examples} samples, allowed are {TOLERANCE:g}; the likeliest class is the same for "
            f"{agreement.num_same}"
        )


def _lines(document: dict[str, object], classifier: Classifier, model: OnnxModel) -> Iterator[str]:
    yield f"head {classifier.method}; {calibration_note(classifier)}"
    yield f"feed {model.preprocessing['feed']}"
    yield (
        f"compared with torch on {document['num_compared']} {classifier.kind}s: the same class for "
        f"{document['num_same_class']}, probabilities within {document['max_difference']:.1e}"
    )
    if document["tokenizer"] is not None:
        yield str(document["tokenizer"])
    yield f"{document['onnx']} ({len(model.content) / 1e6:.1f} MB)"
