"""`fedstats export`: a head with its network as an ONNX file, or as a folder for the Hugging Face hub."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedstats_app.base.files import to_json, write_atomically
from fedstats_app.base.progress import Progress
from fedstats_app.cli import CommandError
from fedstats_app.cli.inputs import calibration_note, load_classifier
from fedstats_app.cli.terminal import counted, told
from fedstats_app.data import Sample, load_dataset
from fedstats_app.report.classifier import Classifier
from fedstats_app.report.export.hub_folder import write_hub_folder
from fedstats_app.report.export.onnx_file import TOLERANCE, Agreement, OnnxModel, compare, to_onnx

_NUM_IMAGES, _LARGE = 32, (640, 480)
# For a language model: empty, short, with more than ASCII, and longer than any limit.
_TEXTS = (
    "",
    "A film that nobody will remember, and rightly so.",
    "Shares fell by 3.5% after the bank's annual report (page 12).",
    "¿Qué? Zoë paid 20 € — naïvely, in Tōkyō \N{GRINNING FACE}",
    "One sentence after another makes a text that is too long. " * 500,
)


def run(arguments: argparse.Namespace) -> int:
    """Write the files and say what they are.

    Raises
    ------
    CommandError
        If there is nothing to do, the head cannot be loaded or exported, or torch and the file disagree.
    FileNotFoundError, ValueError
        As `fedstats_app.load`.
    """
    if arguments.onnx is None and not arguments.hub:
        raise CommandError("say what to write: --onnx, --hub or both")
    run_folder, hub = Path(arguments.run_folder).expanduser(), Path(arguments.hub).expanduser()
    document: dict[str, Any] = {}
    with told("export") as progress:
        with progress.doing("loading the network and the head"):
            classifier = load_classifier(arguments)
        method = classifier.method
        if arguments.onnx is not None:
            model, agreement = _compared(classifier, progress)
        if arguments.hub:
            beside = arguments.onnx == ""
            written = write_hub_folder(run_folder, method, hub, licence=arguments.licence, onnx=beside)
            document["hub"] = [str(path) for path in written]
        if arguments.onnx is not None:
            path = Path(arguments.onnx).expanduser()
            if not arguments.onnx:
                path = hub if arguments.hub else run_folder / "export"
                path.mkdir(parents=True, exist_ok=True)
            path = path / f"{method}.onnx" if path.is_dir() else path
            document |= _write_onnx(path, model) | asdict(agreement)
    if arguments.json:
        print(to_json({"method": method, **document}))
    else:
        print("\n".join([f"head {method}; {calibration_note(classifier)}", *_lines(document, classifier)]))
    return 0


def _compared(classifier: Classifier, progress: Progress) -> tuple[OnnxModel, Agreement]:
    """Export a classifier, and refuse a file that gives other probabilities."""
    with progress.doing("exporting"):
        model = to_onnx(classifier)
    with progress.doing("comparing with torch, {done} samples") as step:
        agreement = compare(classifier, model, counted(_TEXTS if classifier.kind == "text" else _images(), step))
    if not agreement.is_close:
        raise CommandError(
            f"not written: probabilities by ONNX Runtime and by torch differ by up to {agreement.max_difference:.2g} "
            f"on {agreement.num_examples} samples, allowed are {TOLERANCE:g}; the likeliest class is the same for "
            f"{agreement.num_same}"
        )
    return model, agreement


def _images() -> Iterator[Sample]:
    """Yield some built-in images. They are small, so every other one is made larger than most networks' input."""
    dataset = load_dataset("builtin", "train")
    for index in range(_NUM_IMAGES):
        image = dataset.sample(index)
        yield image.resize(_LARGE) if index % 2 and not isinstance(image, str) else image


def _write_onnx(path: Path, model: OnnxModel) -> dict[str, object]:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, model.content)
    made: dict[str, object] = {"onnx": str(path), "bytes": len(model.content), "feed": model.preprocessing["feed"]}
    if model.tokenizer is not None:
        tokenizer = path.with_name(f"{path.stem}.tokenizer.json")
        write_atomically(tokenizer, model.tokenizer.encode())
        made["tokenizer"] = str(tokenizer)
    return made


def _lines(document: dict[str, Any], classifier: Classifier) -> Iterator[str]:
    yield from document.get("hub", [])
    if "onnx" in document:
        yield f"feed {document['feed']}"
        same = "" if classifier.targets else f"the same class for {document['num_same']}, "
        values = "numbers" if classifier.targets == "numbers" else "probabilities"
        yield (
            f"compared with torch on {document['num_examples']} {classifier.kind}s: {same}{values} within "
            f"{document['max_difference']:.1e}"
        )
        if "tokenizer" in document:
            yield document["tokenizer"]
        yield f"{document['onnx']} ({document['bytes'] / 1e6:.1f} MB)"
