"""The heads that trainings start from: those that were solved, and those that need no statistics."""

from __future__ import annotations

from collections.abc import Sequence

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.heads import LinearHead, SolveReport


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
