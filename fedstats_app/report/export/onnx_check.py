"""Whether an ONNX file gives the probabilities that the classifier gives, on samples, as its user would feed it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data import Sample
from fedstats_app.report.classifier import Classifier
from fedstats_app.report.export.onnx_file import OnnxModel

# The most by which a probability may differ.
TOLERANCE = 1e-4
# Samples in memory at a time.
_CHUNK = 64


@dataclass(frozen=True)
class Agreement:
    """How close two classifiers are.

    Attributes
    ----------
    num_examples : int
        Samples compared.
    num_same : int
        Of them, those whose likeliest class is the same.
    max_difference : float
        The largest difference of two probabilities.
    """

    num_examples: int
    num_same: int
    max_difference: float

    @property
    def is_close(self) -> bool:
        """Whether no probability differs by more than `TOLERANCE`; of no samples it is not known."""
        return self.num_examples > 0 and self.max_difference <= TOLERANCE


def compare(classifier: Classifier, model: OnnxModel, samples: Iterable[Sample]) -> Agreement:
    """Compare probabilities by ONNX Runtime on the CPU with the classifier's own.

    Parameters
    ----------
    classifier : Classifier
        What was exported.
    model : OnnxModel
        What came of it.
    samples : iterable
        Images in mode RGB or texts; read some at a time.
    """
    import onnxruntime

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.content, quiet, providers=["CPUExecutionProvider"])
    num_examples, num_same, largest = 0, 0, 0.0
    stream = iter(samples)
    while chunk := list(itertools.islice(stream, _CHUNK)):
        expected = classifier.probabilities(chunk).numpy()
        for positions, inputs in _batches(chunk, model):
            [made] = session.run(None, inputs)
            wanted = expected[positions]
            num_examples += len(positions)
            num_same += int((made.argmax(axis=1) == wanted.argmax(axis=1)).sum())
            difference = float(np.abs(made - wanted).max())
            largest = max(largest, float("inf") if np.isnan(difference) else difference)
    return Agreement(num_examples, num_same, largest)


def _batches(chunk: list[Sample], model: OnnxModel) -> Iterator[tuple[list[int], dict[str, NDArray[np.generic]]]]:
    """Yield positions in the chunk and the inputs of a batch: of texts all, of images those of one size."""
    if model.tokenizer is not None:
        from tokenizers import Tokenizer

        encoded = Tokenizer.from_str(model.tokenizer).encode_batch(chunk)
        ids, masks = [one.ids for one in encoded], [one.attention_mask for one in encoded]
        inputs: dict[str, NDArray[np.generic]] = {"input_ids": np.array(ids, np.int64)}
        inputs["attention_mask"] = np.array(masks, np.int64)
        yield list(range(len(chunk))), inputs
        return
    of_size: dict[tuple[int, ...], list[tuple[int, NDArray[np.generic]]]] = defaultdict(list)
    for position, image in enumerate(chunk):
        assert isinstance(image, Image.Image)  # noqa: S101  # the classifier took it for one
        if model.side is not None:
            filtered = Image.Resampling[str(model.preprocessing["interpolation"]).upper()]
            image = image.resize((model.side, model.side), filtered)
        pixels = np.asarray(image)
        of_size[pixels.shape].append((position, pixels))
    for group in of_size.values():
        yield [position for position, _ in group], {"images": np.stack([pixels for _, pixels in group])}
