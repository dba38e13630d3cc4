"""Pictures for the run folder: plots drawn while the run continues, and test images that a head gets wrong."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from fedstats_app.data.dataset import UnreadableSampleError
from fedstats_app.grid.progress import say
from fedstats_app.heads import LinearHead
from fedstats_app.report.examples_file import Example, write_examples
from fedstats_app.report.method_result import MethodResult
from fedstats_app.server.evaluation_data import ServerTestSet
from fedstats_app.statistics import FeatureMap


class Drawing:
    """Draws in one thread of its own: torch leaves Python to others while it computes.

    Parameters
    ----------
    folder : Path or None
        Of the plots; None draws nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        # matplotlib's settings are of the process: one at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fedstats-plots")
        self._drawn: list[Future[None]] = []

    def plots(self, *args: Any, **kwargs: Any) -> None:
        """Draw what :func:`fedstats_app.report.plots.first_stage.write_plots` draws of these arguments, soon."""
        if self._folder is not None:
            self._drawn.append(self._thread.submit(_write, self._folder, *args, **kwargs))

    def finish(self) -> None:
        """Wait until all is drawn.

        Raises
        ------
        Exception
            What a plot failed with.
        """
        for one in self._drawn:
            one.result()

    def stop(self) -> None:
        """Draw no more than what has begun."""
        self._thread.shutdown(cancel_futures=True)


@contextmanager
def drawing(folder: Path | None) -> Iterator[Drawing]:
    """Give a run its plots; an error in the block ends them too."""
    made = Drawing(folder)
    try:
        yield made
    finally:
        made.stop()


def _write(folder: Path, *args: Any, **kwargs: Any) -> None:
    from fedstats_app.report.plots.first_stage import write_plots  # matplotlib takes a second to load

    write_plots(folder, *args, **kwargs)


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
