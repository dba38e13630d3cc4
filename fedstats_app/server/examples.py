"""Small pictures of the server's own test images that a head takes for another class, for the report."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from fedstats_app.data.dataset import UnreadableSampleError
from fedstats_app.grid.progress import say
from fedstats_app.heads import LinearHead
from fedstats_app.report.examples_file import Example, write_examples
from fedstats_app.report.method_result import MethodResult
from fedstats_app.server.evaluation_data import ServerTestSet
from fedstats_app.statistics import FeatureMap

_PAIRS, _PER_PAIR = 6, 5
_PIXELS = 96  # of the longer side


def save_examples(
    folder: Path,
    test_set: ServerTestSet,
    result: MethodResult | None,
    heads: Mapping[str, tuple[FeatureMap, LinearHead]],
    mask_absent: bool,
) -> None:
    """Write the first test images of the pairs that a head confuses most often; nothing of texts.

    The heads are saved by then: whatever goes wrong here costs a line in the log and no more.

    Parameters
    ----------
    folder : Path
        The run folder.
    test_set : ServerTestSet
        Of the server; never a client's samples.
    result : MethodResult or None
        Of the head whose mistakes are shown, evaluated on it.
    heads : mapping
        From method to feature map and head.
    mask_absent : bool
        As in the evaluation.
    """
    if test_set.dataset.kind != "image" or result is None:
        return
    wanted = [(true, predicted) for true, predicted, _ in result.most_confused[:_PAIRS]]
    try:
        predictions = test_set.predictions(*heads[result.method], mask_absent=mask_absent)
        examples = [
            Example(true, predicted, _thumbnails(test_set, predictions, true, predicted)) for true, predicted in wanted
        ]
        write_examples(folder, result.method, examples)
    except Exception as error:  # noqa: BLE001  # pictures in a report must not cost a run
        say(f"no example images for the report: {type(error).__name__}: {error}")


def _thumbnails(
    test_set: ServerTestSet, predictions: Sequence[tuple[int, int]], true: int, predicted: int
) -> tuple[str, ...]:
    """Return base64 of JPEGs."""
    dataset, found = test_set.dataset, list[str]()
    for position, choice in predictions:
        if len(found) == _PER_PAIR:
            break
        if choice == predicted and dataset.labels[position] == true:
            try:
                sample = dataset.sample(position)
            except UnreadableSampleError:  # its features came from the cache
                continue
            if isinstance(sample, Image.Image):
                found.append(_jpeg(sample))
    return tuple(found)


def _jpeg(image: Image.Image) -> str:
    image.thumbnail((_PIXELS, _PIXELS))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
