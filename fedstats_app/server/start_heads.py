"""The heads that trainings start from: those that were solved, and those that need no statistics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.heads import LinearHead, SolveReport
from fedstats_app.report.head_file import read_head
from fedstats_app.report.state import SolvedHead
from fedstats_app.statistics import feature_map_from_dict


def label_word_head(words: Sequence[str], backbone: Backbone, class_names: Sequence[str]) -> LinearHead:
    """Return the head that scores each class by the language model's score for the class's word.

    Raises
    ------
    ValueError
        If there is not one word per class, a word is not one token, or the backbone has no language head.
    """
    if len(words) != len(class_names):
        raise ValueError(
            f"label-words must be one word per class, for {', '.join(class_names[:20])}; got {', '.join(words)}"
        )
    if backbone.language_head is None:
        raise ValueError(f"label-words: backbone {backbone.name} has no language head without a text-template")
    weight, bias = backbone.language_head.rows(words)
    return LinearHead(weight, bias, report=SolveReport(regulariser=f"label words {', '.join(words)}"))


def head_of_file(path: Path, backbone: Backbone, class_names: Sequence[str]) -> SolvedHead:
    """Return a head that an earlier run saved, solved or trained, to train on from.

    Parameters
    ----------
    path : Path
        A ``heads/NAME.safetensors`` of its run folder.
    backbone : Backbone
        On whose features it is to be.
    class_names : sequence of str
        In the order that its rows are to have.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, it is damaged, or of another backbone or other classes.
    """
    head, metadata = read_head(path)
    names = json.loads(metadata["class-names"])
    if sorted(names) != sorted(class_names):
        raise ValueError(
            f"start-head-file: {path} is for the classes {', '.join(names[:20])}; "
            f"this run's are {', '.join(class_names[:20])}"
        )
    if metadata["backbone-fingerprint"] != backbone.fingerprint:
        tuned = metadata.get("tuned-backbone", "")
        advice = f"; backbone-weights can name the weights tuned with it, {path.with_name(tuned)}" if tuned else ""
        raise ValueError(
            f"start-head-file: {path} is for features of {metadata['backbone']}, fingerprint "
            f"{metadata['backbone-fingerprint'][:16]}; this run's are of {backbone.name}, fingerprint "
            f"{backbone.fingerprint[:16]}{advice}"
        )
    rows = [names.index(name) for name in class_names]
    report = SolveReport(regulariser=f"of {path.stem}")
    ordered = LinearHead(head.weight[rows], head.bias[rows], head.present[rows], report)
    return SolvedHead(ordered, feature_map_from_dict(json.loads(metadata["feature-map"])))
