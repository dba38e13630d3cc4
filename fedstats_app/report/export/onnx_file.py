"""A classifier as one ONNX file: preprocessing, backbone and calibrated head, and in its header how to use it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.export import Dim

from fedstats_app import __version__
from fedstats_app.backbones.text.transform import TextTransform
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.data import Sample
from fedstats_app.report.classifier import Classifier
from fedstats_app.report.export.pillow_resize import Order, order_of_pillow, pillow_resize


class _Network(nn.Module):
    """A backbone, and from its features to probabilities in float32: feature map, head, temperature, softmax.

    The mean of the rows is taken off the weights, and the temperature is divided into them, in float64: the softmax is
    the same, with less to be lost to rounding. Several labels take a sigmoid each, and numbers neither.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.backbone = classifier.backbone.module.eval().to("cpu").to(memory_format=torch.contiguous_format)
        head = classifier.head
        known, self.targets = head.present, classifier.targets
        if self.targets:
            self.register_buffer("weight", head.weight.to(torch.float32))
            bias = torch.where(known, head.bias, -torch.inf if self.targets == "labels" else torch.nan)
            self.register_buffer("bias", bias.to(torch.float32))
            return
        weight, bias = ((part - part[known].mean(dim=0)) / classifier.temperature for part in (head.weight, head.bias))
        self.register_buffer("weight", weight.masked_fill(~known[:, None], 0.0).to(torch.float32))
        self.register_buffer("bias", bias.masked_fill(~known, -torch.inf).to(torch.float32))

    def probabilities(self, *inputs: Tensor) -> Tensor:
        scores: Tensor = self.backbone(*inputs) @ self.weight.T + self.bias
        if self.targets:
            return torch.sigmoid(scores) if self.targets == "labels" else scores
        return torch.softmax(scores, dim=1)


class _ImageInput(nn.Module):
    """From images (N, H, W, 3) uint8 to a network's input (N, 3, side, side) float32; an order of None leaves sizes."""

    scale: Tensor
    shift: Tensor

    def __init__(self, transform: ImageTransform, order: Order | None) -> None:
        super().__init__()
        self.side, self.interpolation, self.order = transform.input_size, transform.interpolation, order
        # (pixel / 255 - mean) / std as one product and one sum in float32.
        mean, std = np.array(transform.mean), np.array(transform.std)
        for name, values in (("scale", 1.0 / (255.0 * std)), ("shift", -mean / std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).reshape(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        if self.order is None:
            pixels = images.permute(0, 3, 1, 2)
        else:
            pixels = pillow_resize(images, self.side, self.interpolation, self.order)
        return pixels.to(torch.float32) * self.scale + self.shift


class ImageNetwork(_Network):
    """Images (N, H, W, 3) uint8 in, probabilities (N, C) float32 out.

    Parameters
    ----------
    classifier : Classifier
        For images.
    inputs : sequence of nn.Module
        From images to the input of each network.
    """

    def __init__(self, classifier: Classifier, inputs: Sequence[nn.Module]) -> None:
        super().__init__(classifier)
        self.inputs = nn.ModuleList(inputs)

    def forward(self, images: Tensor) -> Tensor:
        """Return the probabilities (N, C) of images (N, H, W, 3)."""
        return self.probabilities(*(own(images) for own in self.inputs))


class TextNetwork(_Network):
    """Token ids and attention mask (N, T) int64 in, probabilities (N, C) float32 out."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the probabilities (N, C) of texts (N, T)."""
        return self.probabilities(torch.stack([input_ids, attention_mask], dim=1))


if TYPE_CHECKING:
    import onnx

_LIBRARIES = ("onnx", "onnxscript", "onnxruntime")
_OPSET = 18
# A protocol buffer, which an ONNX file is, can have no more.
_MOST_BYTES = 2**31 - 1


class ExportError(ValueError):
    """A classifier cannot be exported; the message says why."""


@dataclass(frozen=True)
class OnnxModel:
    """An exported classifier.

    Attributes
    ----------
    content : bytes
        Of the ONNX file.
    preprocessing : dict
        As in the file's header: what goes in, in words (`feed`), and the values behind.
    side : int or None
        To how many pixels a side images must be resized before; None if the file does that, or takes texts.
    tokenizer : str or None
        The `tokenizer.json` that belongs to a classifier of texts.
    """

    content: bytes
    preprocessing: Mapping[str, Any]
    side: int | None = None
    tokenizer: str | None = None


def to_onnx(classifier: Classifier) -> OnnxModel:
    """Export a classifier; :func:`compare` checks that the file gives the same probabilities.

    The output `probabilities`, or `numbers`, is (N, C) float32. Images go into `images`, (N, H, W, 3) uint8; H and W
    are any where the resize can be expressed, else the backbone's input size. Texts go into `input_ids` and
    `attention_mask`, (N, T) int64.

    Parameters
    ----------
    classifier : Classifier
        Its backbone is on the CPU afterwards.

    Raises
    ------
    ExportError
        If a library is missing, the network has what ONNX lacks, the classifier puts texts into a prompt, or the file
        would have more than 2 GB.
    """
    if missing := [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]:
        raise ExportError(f"ONNX needs {', '.join(missing)}: pip install 'fedstats-app[export]'")
    backbone = classifier.backbone
    if (size := sum(tensor.nbytes for tensor in backbone.module.state_dict().values())) > _MOST_BYTES:
        raise ExportError(f"{backbone.name} has {size / 1e9:.1f} GB of weights, and an ONNX file can have 2 GB")
    return _of_texts(classifier) if classifier.kind == "text" else _of_images(classifier)


def _of_images(classifier: Classifier) -> OnnxModel:
    transforms = [
        own for network in classifier.backbone.networks if isinstance(own := network.transform, ImageTransform)
    ]
    orders = [order_of_pillow(transform.interpolation) for transform in transforms]
    sizes = dict.fromkeys(
        f"{own.input_size} x {own.input_size} pixels by Pillow's {own.interpolation}" for own in transforms
    )
    size, size_in_words = transforms[0].input_size, " and ".join(sizes)
    if (outside := None in orders) and len(transforms) > 1:
        raise ExportError(f"joined networks need their resize in the file, which has none to {size_in_words}")
    sides = "resized to " + size_in_words + ", H = W" if outside else "all of a batch of one size"
    inside = "normalisation is" if outside else f"the resize to {size_in_words} and the normalisation are"
    preprocessing = {
        "feed": f"images: uint8 RGB (N, H, W, 3), upright, transparency on white, {sides}; {inside} inside",
        "resize-inside": not outside,
        "resized-as-by": f"Pillow {PIL.__version__}",
        **classifier.backbone.transform_spec,
    }
    blank = torch.zeros((2, size, size, 3) if outside else (2, 37, 51, 3), dtype=torch.uint8)
    axes = {0: Dim("N")} if outside else {0: Dim("N"), 1: Dim("H"), 2: Dim("W")}
    network = ImageNetwork(classifier, [_ImageInput(*own) for own in zip(transforms, orders, strict=True)])
    content = _exported(classifier, network, {"images": blank}, axes, preprocessing)
    return OnnxModel(content, preprocessing, size if outside else None)


def _of_texts(classifier: Classifier) -> OnnxModel:
    if len(networks := classifier.backbone.networks) > 1:
        raise ExportError(f"a file has one tokenizer, and {classifier.backbone.name} needs {len(networks)}")
    transform = classifier.backbone.transform
    assert isinstance(transform, TextTransform)  # noqa: S101  # of texts there is no other
    if transform.template:
        raise ExportError(
            f"head {classifier.method} reads texts within the prompt {transform.template!r} (text-template), which is "
            "put together outside the network: only sentence encoders are exported"
        )
    preprocessing = {
        "feed": "input_ids and attention_mask: int64 (N, T) of the .tokenizer.json beside this file, which cuts texts "
        f"off at {transform.input_size} tokens and pads them",
        **transform.spec,
    }
    ids, mask = torch.stack([transform("some text"), transform("and another text")]).unbind(dim=1)
    inputs, axes = {"input_ids": ids, "attention_mask": mask}, {0: Dim("N"), 1: Dim("T", max=transform.input_size)}
    content = _exported(classifier, TextNetwork(classifier), inputs, axes, preprocessing)
    return OnnxModel(content, preprocessing, tokenizer=transform.standalone_tokenizer())


def _exported(
    classifier: Classifier,
    network: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[int, Any],
    preprocessing: Mapping[str, object],
) -> bytes:
    try:
        # Hide the exporter's warnings, which are for its developers.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                network.eval(),
                tuple(inputs.values()),
                dynamo=True,
                dynamic_shapes={name: dict(axes) for name in inputs},
                input_names=list(inputs),
                output_names=["numbers" if classifier.targets == "numbers" else "probabilities"],
                opset_version=_OPSET,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        first = str(error).strip().partition("\n")[0]
        raise ExportError(
            f"{classifier.backbone.name} cannot be expressed in ONNX by torch {torch.__version__}: {first}"
        ) from error
    assert program is not None  # noqa: S101  # so with dynamo=True
    proto: onnx.ModelProto = program.model_proto
    # Where in Python every operation comes from: paths of this machine, and megabytes.
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer, *proto.functions):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for key, value in _header(classifier, preprocessing).items():
        proto.metadata_props.add(key=key, value=value)
    content: bytes = proto.SerializeToString()
    return content


def _header(classifier: Classifier, preprocessing: Mapping[str, object]) -> dict[str, str]:
    return {
        "class-names": json.dumps(classifier.class_names),
        **({"targets": classifier.targets} if classifier.targets else {}),
        "preprocessing": json.dumps(preprocessing),
        "method": classifier.method,
        "temperature": str(classifier.temperature),
        "calibrated-on": classifier.calibrated_on,
        "backbone": classifier.backbone.name,
        "backbone-fingerprint": classifier.backbone.fingerprint,
        "backbone-licence": classifier.backbone.licence,
        "made-by": f"fedstats-app {__version__}",
    }


# The most by which a probability may differ.
TOLERANCE = 1e-4
# Samples in memory at a time.
_CHUNK = 64


@dataclass(frozen=True)
class Agreement:
    """Comparison of two classifiers.

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
        """Return whether no probability differs by more than `TOLERANCE`; False without samples."""
        return self.num_examples > 0 and self.max_difference <= TOLERANCE


def compare(classifier: Classifier, model: OnnxModel, samples: Iterable[Sample]) -> Agreement:
    """Compare probabilities by ONNX Runtime on the CPU, fed as a user would, with those of the classifier exported.

    Samples are images in mode RGB or texts, read some at a time.
    """
    import onnxruntime

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.content, quiet, providers=["CPUExecutionProvider"])
    num_examples, num_same, largest = 0, 0, 0.0
    stream, numbers = iter(samples), classifier.targets == "numbers"
    # A number that was dropped has none to compare.
    known = classifier.head.present.numpy() | (not numbers)
    while chunk := list(itertools.islice(stream, _CHUNK)):
        expected = (classifier.scores(chunk) if numbers else classifier.probabilities(chunk)).numpy()[:, known]
        for positions, inputs in _batches(chunk, model):
            [made] = (probabilities[:, known] for probabilities in session.run(None, inputs))
            wanted = expected[positions]
            num_examples += len(positions)
            num_same += int((made.argmax(axis=1) == wanted.argmax(axis=1)).sum())
            difference = float((np.abs(made - wanted) / np.maximum(np.abs(wanted), 1.0)).max())
            largest = max(largest, float("inf") if np.isnan(difference) else difference)
    return Agreement(num_examples, num_same, largest)


def _batches(chunk: list[Sample], model: OnnxModel) -> Iterator[tuple[list[int], dict[str, NDArray[np.generic]]]]:
    """Yield positions in the chunk and the inputs of a batch: of texts all, of images those of one size."""
    if model.tokenizer is not None:
        from tokenizers import Tokenizer

        encoded = Tokenizer.from_str(model.tokenizer).encode_batch(chunk)
        ids, masks = [encoding.ids for encoding in encoded], [encoding.attention_mask for encoding in encoded]
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
