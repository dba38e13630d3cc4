"""`fedstats inspect`: which of a site's own labels may be wrong, for a person to look at. Nothing leaves the site."""

from __future__ import annotations

import argparse
import base64
import csv
import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedstats_app.base.files import write_atomically
from fedstats_app.cli import CommandError
from fedstats_app.cli.evaluate import CHUNK, align_classes
from fedstats_app.cli.inputs import features_in_chunks, load_classifier, record_of_run, tell_unreadable
from fedstats_app.cli.predict import plain
from fedstats_app.cli.terminal import printable, table, told
from fedstats_app.data import Dataset, Sample
from fedstats_app.data.appearance import Appearance, appearance_of, copies, unlike
from fedstats_app.data.clients import own_dataset
from fedstats_app.data.data_options import DataOptions
from fedstats_app.heads.scores import label_margins
from fedstats_app.report.page import page_of, parts
from fedstats_app.report.text_columns import percent

_ON_TERMINAL, _NAME_WIDTH, _THUMBNAIL = 20, 44, 120
_WIDTHS = (_NAME_WIDTH, 20, 20)


@dataclass(frozen=True)
class Inspection:
    """A site's samples beside what a head says of them.

    Attributes
    ----------
    dataset : Dataset
        With the head's classes.
    index : ndarray
        (n,) of the samples that could be read, by falling suspicion.
    margin : ndarray
        (n,) their margins: the head's score of the given label over that of the best other.
    predicted : ndarray
        (n,) the head's classes.
    seen : list of Appearance
        Of the same samples.
    """

    dataset: Dataset
    index: NDArray[np.int64]
    margin: NDArray[np.float64]
    predicted: NDArray[np.int64]
    seen: list[Appearance]

    def name(self, row: int) -> str:
        """Return the name of a sample."""
        return self.dataset.sample_name(int(self.index[row]))

    def given(self, row: int) -> str:
        """Return the class of a sample's label."""
        return self.dataset.class_names[int(self.labels[row])]

    def says(self, row: int) -> str:
        """Return the class that the head names."""
        return self.dataset.class_names[int(self.predicted[row])]

    @cached_property
    def strange(self) -> dict[int, str]:
        """In which words images differ from the others, by row."""
        return unlike(self.seen) if self.dataset.kind == "image" else {}

    @property
    def labels(self) -> NDArray[np.int64]:
        """(n,) the given labels."""
        return self.dataset.labels[self.index]


def run(arguments: argparse.Namespace) -> int:
    """Print the suspicious samples and write the page; 1 if a sample could not be read.

    Raises
    ------
    CommandError, FileNotFoundError, ValueError
        If the head cannot be loaded, or the data are of another kind or have other classes.
    """
    unreadable: dict[str, str] = {}
    with told("inspect") as progress:
        with progress.doing("loading the network and the head"):
            classifier = load_classifier(arguments, "auto")
        if classifier.targets:
            raise CommandError(f"head {classifier.method} gives {classifier.targets} to a sample, not one class")
        with progress.doing("reading the list of samples"):
            dataset = own_dataset(str(Path(arguments.data).expanduser().absolute()), _options(arguments.run_folder))
        if dataset.kind != classifier.kind:
            raise CommandError(f"head {classifier.method} classifies {classifier.kind}s, DATA has {dataset.kind}s")
        dataset = align_classes(dataset, classifier.class_names)
        seen: dict[int, Appearance] = {}
        indices, margins, predicted = list[int](), list[float](), list[int]()

        def look(index: int, sample: Sample) -> None:
            seen[index] = appearance_of(sample)

        for features, read in features_in_chunks(dataset, CHUNK, classifier, unreadable, progress, look):
            scores = classifier.scores(features)
            margins += label_margins(scores, torch.from_numpy(dataset.labels[read])).tolist()
            predicted += scores.argmax(dim=1).tolist()
            indices += read
        if not indices:
            raise CommandError(f"none of {len(dataset)} {dataset.kind}s can be read")
        order = np.argsort(margins, kind="stable")
        found = Inspection(
            dataset,
            np.array(indices)[order],
            np.array(margins)[order],
            np.array(predicted)[order],
            [seen[indices[place]] for place in order],
        )
        if not arguments.csv:
            write_atomically(
                Path(arguments.out), page(found, classifier.method, arguments.top).encode(errors="replace")
            )
    if arguments.csv:
        _write_csv(found)
    else:
        print("\n\n".join(_sections(found, arguments)))
    return tell_unreadable("inspect", unreadable)


def _options(run_folder: str) -> DataOptions:
    """Return the columns and class names of a run, with which a node reads its data; here no person has too many."""
    settings = record_of_run(run_folder).get("run_config", {})
    return replace(DataOptions.read(settings), person_column="")


def _same(found: Inspection) -> list[str]:
    """Name the samples that are the same in two classes, a group a line."""
    groups = copies(found.seen, found.labels)
    return [" = ".join(f"{found.name(row)} ({found.given(row)})" for row in group) for group in groups]


def _share(found: Inspection) -> str:
    kind, number, share = found.dataset.kind, int((found.margin < 0).sum()), float((found.margin < 0).mean())
    return f"To {number:,} of {len(found.index):,} {kind}s ({percent(share)}) the head gives another class."


def _sections(found: Inspection, arguments: argparse.Namespace) -> Iterator[str]:
    yield f"{_share(found)} Nothing was sent."
    rows = [
        (*map(printable, (found.name(row), found.given(row), found.says(row)), _WIDTHS), f"{found.margin[row]:.3f}")
        for row in range(min(_ON_TERMINAL, len(found.index)))
    ]
    yield table(("lowest margins first", "label", "head says", "margin"), rows, left=3)
    if same := _same(found):
        yield "the same in two classes:\n" + "\n".join(printable(line, 1000) for line in same[:_ON_TERMINAL])
    if strange := [(printable(found.name(row), _NAME_WIDTH), words) for row, words in found.strange.items()]:
        yield table((f"{len(strange):,} images unlike the others", ""), strange[:_ON_TERMINAL], left=2)
    yield f"{arguments.out} shows them; it has images of this site. It is a list for a person: not every one is wrong."


def _write_csv(found: Inspection) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["sample", "label", "head", "margin", "brightness", "pixels", "grey", "unlike"])
    for row, seen in enumerate(found.seen):
        looks = (round(seen.brightness, 4), seen.pixels, round(seen.grey, 4), found.strange.get(row, ""))
        writer.writerow(map(plain, [found.name(row), found.given(row), found.says(row), found.margin[row], *looks]))


def page(found: Inspection, method: str, top: int) -> str:
    """Render the page: the share of negative margins, by class too, and pictures of the first ``top`` samples."""
    names, labels, kind = found.dataset.class_names, found.labels, found.dataset.kind
    by_class = []
    for label in np.unique(labels):
        own = found.margin[labels == label]
        by_class.append((names[label], f"{len(own):,}", f"{int((own < 0).sum()):,}", percent(float((own < 0).mean()))))
    columns = {"class": "", f"{kind}s": "", "head says another": "", "share": ""}
    strange, same = [*found.strange.items()][:top], _same(found)
    doubted = [(row, f"margin {found.margin[row]:.3f}") for row in range(min(top, len(found.index)))]
    return page_of(
        "Labels to look at",
        f"{_share(found)} This is a list for a person: samples that the head of {method} doubts are often labelled "
        "wrongly, and often only rare. Nothing was sent; the page shows samples of this site.",
        [
            ("margins", "Lowest margins first", [_pictures(found, doubted)]),
            ("copies", "The same in two classes", [parts.listing(same)] if same else []),
            ("unlike", "Unlike the others", [_pictures(found, strange)] if strange else []),
            ("classes", "By class", [parts.table(columns, by_class, len(by_class))]),
        ],
        facts=[("data", Path(found.dataset.name).name), ("head", method)],
        source="this site's data",
    )


def _pictures(found: Inspection, rows: Iterable[tuple[int, str]]) -> str:
    """Show samples with their names, labels and a remark each."""
    items = []
    for row, remark in rows:
        says = f"{found.given(row)}; the head: {found.says(row)}"
        items.append((_thumbnail(found.dataset.sample(int(found.index[row]))), (found.name(row), says, remark)))
    shown: str = parts.pictures(items, found.dataset.kind)
    return shown


def _thumbnail(sample: Sample) -> str:
    """Return a small JPEG in base64; of a text its beginning."""
    if isinstance(sample, str):
        return sample[:300]
    small, written = sample.copy(), io.BytesIO()
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    small.save(written, "JPEG", quality=80)
    return base64.b64encode(written.getvalue()).decode()
