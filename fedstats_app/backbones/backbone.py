"""A frozen network with its own transform, run at one fixed batch shape, and the fingerprint of its features."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from fedstats_app.backbones.architecture import UNKNOWN_LICENCE
from fedstats_app.backbones.device import (
    SMALL,
    automatic_batch_size,
    resolve_autocast,
    resolve_device,
    small_batches_at_once,
)
from fedstats_app.backbones.engine import BFLOAT16, TORCH, Engine, EngineError, chosen_engine, openvino_version
from fedstats_app.backbones.feature_map import MappedFeatures
from fedstats_app.backbones.openvino_engine import OpenVINOEngine
from fedstats_app.backbones.transform import InputTransform
from fedstats_app.base.threads import beside_each_other
from fedstats_app.data.dataset import Kind
from fedstats_app.data.feature_cache import default_cache_root

if TYPE_CHECKING:
    from fedstats_app.backbones.text.encoders import LanguageHead


logger = logging.getLogger("fedstats_app")


class InputSizeError(ValueError):
    """A network cannot take samples of the size that is asked for: the message says which and why."""


class Running(TypedDict, total=False):
    """Arguments of `Backbone` that say how it is run."""

    batch_size: int | Literal["auto"]
    device: str
    autocast: str
    channels_last: bool
    engine: str
    engine_cache: Path | None
    feature_map: str


class Backbone:
    """A frozen feature extractor: images or texts in, pooled features out.

    Every forward pass has a shape that the samples in it have by themselves - (batch_size, 3, input_size, input_size)
    for images, (batch_size, 2, one of a few lengths) for texts - with a batch that is not full being padded with zeros,
    because kernels round differently at different shapes. So a sample's features are the same to the bit whatever
    samples come before, after or beside it, on one machine and library version. On a CPU, batches of more than 16 have
    all threads, and their features depend on how many there are.

    Parameters
    ----------
    name : str
        By which `load_backbone` finds it; it enters the fingerprint.
    module : nn.Module
        Maps (B, 3, H, W) float32, or (B, 2, T) int64 (token ids and attention mask), to (B, feature_dim). It is put in
        eval mode, frozen, and moved to the device.
    transform : InputTransform
        From a sample to what the network was trained to see.
    weights_source, features : str
        Where its weights came from, and what of the network the features are, in words.
    batch_size : int or "auto"
        Samples per forward pass; "auto" for what the device likes (:mod:`fedstats_app.backbones.device`).
    device : str
        "cpu", "cuda", "cuda:N", "mps", or "auto" (cuda where there is one, else cpu). The CPU unless said, where
        labels lie; a run's default is "auto".
    autocast : {"none", "bf16", "fp16"}
        Compute in lower precision: bf16 on cpu and cuda, fp16 on cuda. Features still come out in float32. "none" means
        full float32, also where the GPU would use TF32 for convolutions.
    channels_last : bool
        Lay images out as NHWC in memory, often faster; for texts it has no meaning.
    identity : str
        What enters the fingerprint in place of the name, for a network that sites may know by several names.
    language_head : LanguageHead, optional
        The output embedding of a language model whose features are what enters it.
    licence : str
        Of the weights, as their publisher names it.
    largest_feature : float
        A bound that the network sets; infinite if it sets none.
    engine : {"auto", "torch", "openvino", "openvino-bf16"}
        What computes the features of `extract` and `forward_batch`: torch, or OpenVINO with one sample an inference
        (:func:`fedstats_app.backbones.engine.chosen_engine`). The module itself is torch's with every engine.
    engine_cache : Path, optional
        Folder of the caches, for networks exported to an engine; by default `default_cache_root()`.
    feature_map : str
        Map behind the network (:func:`fedstats_app.backbones.names.parse_feature_map`), part of it from here on and of
        the fingerprint. A module that is a :class:`MappedFeatures` has it already.

    Attributes
    ----------
    feature_dim : int
        Length d of a feature vector.
    kind : {"image", "text"}
        Of the samples.
    input_size : int
        Side of the square image that the network sees, in pixels; or the most tokens of a text. Of several networks the
        largest.
    sizes : str
        Those of all networks: "224", or "224+518".
    transform_spec : dict
        All that determines a network's inputs, as values that JSON can hold.
    fingerprint : str
        Hex sha256 of name, weights and transform: of all that decides what features mean, and not of batch size,
        device, autocast, memory layout or an engine in float32. Statistics may be added where fingerprints are equal.
        OpenVINO in bfloat16 is in it: its features differ by per cents.

    Raises
    ------
    ValueError
        If an option has a value that is not allowed or this machine cannot serve, or the network does not turn a sample
        into one vector.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        transform: InputTransform,
        *,
        weights_source: str,
        batch_size: int | Literal["auto"] = 32,
        device: str = "cpu",
        autocast: str = "none",
        channels_last: bool = False,
        identity: str = "",
        language_head: LanguageHead | None = None,
        licence: str = UNKNOWN_LICENCE,
        largest_feature: float = math.inf,
        features: str = "the network's own pooled output",
        engine: str = "torch",
        engine_cache: Path | None = None,
        feature_map: str = "none",
    ) -> None:
        if batch_size != "auto" and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.name, self.identity = name, identity
        self.transform, self.language_head = transform, language_head
        self.kind: Kind = transform.kind
        self.input_size, self.sizes = transform.input_size, str(transform.input_size)
        self.transform_spec = transform.spec
        self.weights_source, self.features = weights_source, features
        self.licence, self.largest_feature = licence, largest_feature
        self._asked_batch_size = batch_size
        self.device = resolve_device("cpu" if device == "auto" and engine.startswith("openvino") else device)
        self.autocast = autocast
        self.channels_last = channels_last and transform.kind == "image"
        self._autocast_dtype = resolve_autocast(autocast, self.device)
        self._memory_format = torch.channels_last if self.channels_last else torch.contiguous_format
        num_weights = sum(parameter.numel() for parameter in module.parameters())
        self._asked_engine, self._engine_cache = engine, engine_cache
        self._engine, self._engine_reason = chosen_engine(
            engine, device=self.device.type, autocast=autocast, num_weights=num_weights
        )
        fingerprint = _fingerprint(identity or name, module, transform)
        module = module.cpu().eval().requires_grad_(False)
        self.feature_dim, self.feature_map = _measured_feature_dim(name, module, transform), feature_map
        if feature_map != "none" and not isinstance(module, MappedFeatures):
            module = MappedFeatures(module, feature_map, self.feature_dim)
            self.feature_dim, self.largest_feature = _measured_feature_dim(name, module, transform), math.inf
        if feature_map != "none":
            fingerprint = hashlib.sha256(f"{feature_map} {fingerprint}".encode()).hexdigest()
        self._weights_fingerprint = self.fingerprint = fingerprint
        if self._engine == BFLOAT16:
            self.fingerprint = hashlib.sha256(f"{BFLOAT16} {fingerprint}".encode()).hexdigest()
        self.module = module.to(self.device).to(memory_format=self._memory_format)

    def __repr__(self) -> str:
        size = " or ".join("x".join(str(side) for side in shape) for shape in self.transform.shapes)
        text = f"{self.name}, {size} -> {self.feature_dim}, {self.weights_source}, {self.device}"
        return f"Backbone({text}, {self.fingerprint[:12]})"

    @property
    def networks(self) -> tuple[Backbone, ...]:
        """Networks whose features are joined: this one alone."""
        return (self,)

    def join(self, features: Sequence[Tensor]) -> Tensor:
        """Return the backbone's features (b, D) from those of each network, (b, d) float32."""
        return features[0]

    @property
    def expands_features(self) -> bool:
        """True if a map makes other features of the network's, perhaps more."""
        return self.feature_map not in ("none", "unit")

    @functools.cached_property
    def batch_size(self) -> int:
        """Samples per forward pass. Asked for the first time, "auto" tries on a GPU how many its memory takes."""
        if self._asked_batch_size != "auto":
            return self._asked_batch_size
        largest, dtype = max(self.transform.shapes, key=math.prod), self.transform.dtype
        return automatic_batch_size(
            self.device.type, self.kind, lambda size: self._compute(torch.zeros(size, *largest, dtype=dtype))
        )

    @property
    def engine(self) -> Engine:
        """Engine that computes the features; on first use the network is exported if that was not done before.

        Raises
        ------
        EngineError
            If an engine that was named cannot run the network; in place of "auto" torch does.
        """
        return TORCH if self._openvino is None else self._engine

    @property
    def engine_in_words(self) -> str:
        """The engine with its version and precision, and why."""
        if self.engine == TORCH:
            return f"torch {torch.__version__} ({self._engine_reason})"
        precision = "bfloat16" if self.engine == BFLOAT16 else "float32"
        return f"OpenVINO {openvino_version()} in {precision} ({self._engine_reason})"

    @functools.cached_property
    def _openvino(self) -> OpenVINOEngine | None:
        """OpenVINO with the network exported; None for torch, also where "auto" would have liked it and it cannot."""
        if self._engine == TORCH:
            return None
        root, bfloat16 = self._engine_cache or default_cache_root(), self._engine == BFLOAT16
        engine = OpenVINOEngine(self.module, self._weights_fingerprint, self.transform, root, bfloat16=bfloat16)
        try:
            engine.prepare()
        except EngineError as error:
            if self._asked_engine != "auto":
                raise EngineError(f"engine {self._asked_engine}: {error}; use engine torch") from error
            self._engine_reason = f"not OpenVINO: {error}"
            logger.warning("engine torch: %s", error)
            return None
        return engine

    @property
    def computed_by(self) -> tuple[str, ...]:
        """All that the last bits of features depend on, beside fingerprint and machine."""
        if self._openvino is not None:
            return self.engine, openvino_version()
        return str(self.batch_size), self.autocast, str(self.channels_last), self.device.type, torch.__version__

    def extract(self, samples: Iterable[Any]) -> Iterator[Tensor]:
        """Compute the features of any number of samples, in their order.

        Parameters
        ----------
        samples : iterable of PIL.Image.Image or of str
            Images are in mode RGB. Read one at a time: they need not fit into memory.

        Yields
        ------
        Tensor
            (b, feature_dim) float32 on the device. Of images, b = batch_size but in the last batch, which has the rest;
            of texts b varies, because a text may have to wait until a batch of its length is full.
        """
        return self.extract_inputs(map(self.input_of, samples))

    def input_of(self, sample: Any) -> Any:
        """Return a sample as :meth:`extract_inputs` takes it: what its transform makes of it."""
        return self.transform(sample)

    def extract_inputs(self, inputs: Iterable[Any]) -> Iterator[Tensor]:
        """Do as :meth:`extract` for samples that went through the transform already, elsewhere or in other threads."""
        if (engine := self._openvino) is not None:
            rows = engine.extract(inputs)
            while block := list(itertools.islice(rows, self.batch_size)):
                yield torch.stack(block)
            return
        jobs = (functools.partial(self._numbered, batch, positions) for batch, positions in self._batches(inputs))
        finished: dict[int, Tensor] = {}
        following = 0
        for features in self._done(jobs):
            finished.update(features)
            ready = list(itertools.takewhile(finished.__contains__, itertools.count(following)))
            if ready:
                yield torch.stack([finished.pop(place) for place in ready])
                following += len(ready)

    def _done(self, jobs: Iterable[Callable[[], dict[int, Tensor]]]) -> Iterable[dict[int, Tensor]]:
        """Do jobs side by side if one has too little work for all threads of a CPU and several have room."""
        if self.device.type != "cpu" or self.batch_size > SMALL:
            return (job() for job in jobs)
        sample_bytes = max(map(math.prod, self.transform.shapes)) * self.transform.dtype.itemsize
        return beside_each_other(jobs, small_batches_at_once(self.kind, sample_bytes, self.batch_size))

    def _batches(self, inputs: Iterable[Tensor]) -> Iterator[tuple[Tensor, list[int]]]:
        """Yield full batches of samples of one shape, with their positions; the last of each shape is padded."""
        filling: dict[tuple[int, ...], tuple[Tensor, list[int]]] = {}
        for position, sample in enumerate(inputs):
            shape = tuple(sample.shape)
            if shape not in filling:
                empty = torch.empty(
                    (self.batch_size, *shape),
                    dtype=self.transform.dtype,
                    memory_format=self._memory_format,
                    pin_memory=self.device.type == "cuda",  # which makes copies to a GPU faster
                )
                filling[shape] = empty, []
            batch, positions = filling[shape]
            # Copied by one thread: torch's pool is slow where cores are shared.
            batch.numpy()[len(positions)] = sample.numpy()
            positions.append(position)
            if len(positions) == self.batch_size:
                yield filling.pop(shape)
        for batch, positions in filling.values():
            batch.numpy()[len(positions) :] = 0
            yield batch, positions

    def _numbered(self, batch: Tensor, positions: Sequence[int]) -> dict[int, Tensor]:
        """Return the positions of a batch's samples, each with its features."""
        return dict(zip(positions, self.forward_batch(batch), strict=False))

    def forward_batch(self, batch: Tensor) -> Tensor:
        """Compute the features of one full batch of transformed samples, on any device, which is left as it was.

        They are (batch_size, feature_dim) float32 on the backbone's device; without gradient, but may enter autograd.

        Raises
        ------
        ValueError
            If the batch has another shape or dtype: a fixed shape is what makes features reproducible.
        torch.OutOfMemoryError
            If the device has too little memory; the message names the key to change.
        """
        shapes, dtype = self.transform.shapes, self.transform.dtype
        if len(batch) != self.batch_size or tuple(batch.shape[1:]) not in shapes or batch.dtype != dtype:
            allowed = " or ".join(str((self.batch_size, *shape)) for shape in shapes)
            got = f"{tuple(batch.shape)} {batch.dtype}"
            raise ValueError(f"{self.name} takes batches {allowed} {str(dtype).removeprefix('torch.')}, got {got}")
        if (engine := self._openvino) is not None:
            return torch.stack(list(engine.extract(batch.detach().cpu().contiguous().unbind())))
        try:
            return self._compute(batch)
        except torch.OutOfMemoryError as error:
            raise torch.OutOfMemoryError(
                f"{self.name}: {self.device} has too little memory for batches of {self.batch_size}: set batch-size to "
                f"{max(self.batch_size // 2, 1)} or less, or let fewer workers share the device"
            ) from error

    def _compute(self, batch: Tensor) -> Tensor:
        self.module.eval()  # every time: a caller may have called train()
        exact = {"enabled": True, "benchmark": False, "deterministic": True, "allow_tf32": False}
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self.device.type == "cuda":
                stack.enter_context(torch.backends.cudnn.flags(**exact))
            if self._autocast_dtype is not None:
                stack.enter_context(torch.autocast(self.device.type, dtype=self._autocast_dtype))
            features: Tensor = self.module(batch.to(self.device).contiguous(memory_format=self._memory_format))
        return features.to(torch.float32, copy=True)  # outside inference mode, so that the copy is no inference tensor


def _fingerprint(name: str, module: nn.Module, transform: InputTransform) -> str:
    """Hash the architecture's name, every weight (name, dtype, shape, bytes) and the transform."""
    digest = hashlib.sha256(json.dumps([name, transform.spec], sort_keys=True).encode())
    for key, value in module.state_dict().items():
        if key.endswith("num_batches_tracked"):
            continue  # a counter of training steps: some files lack it, and no feature depends on it
        tensor = value.detach().cpu().contiguous()
        digest.update(json.dumps([key, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _measured_feature_dim(name: str, module: nn.Module, transform: InputTransform) -> int:
    """Run one blank sample through the network: it must become one finite vector."""
    try:
        with torch.inference_mode():
            features = module(transform.blank()[None])
    except (RuntimeError, ValueError, AssertionError) as error:  # the last is how timm refuses a size
        size = transform.input_size
        inputs = f"images of {size} x {size} pixels" if transform.kind == "image" else f"texts of {size} tokens"
        raise InputSizeError(f"{name} cannot take {inputs}: {error}") from error
    if features.ndim != 2 or features.shape[0] != 1 or not bool(features.isfinite().all()):
        shape = tuple(features.shape)
        raise ValueError(f"{name} must turn a sample into one finite vector (1, d), got shape {shape}")
    return int(features.shape[1])
