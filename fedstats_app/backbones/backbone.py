"""A frozen network with its own transform, run at one fixed batch shape, and the fingerprint of its features."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator

import torch
from PIL import Image
from torch import Tensor, nn

from fedstats_app.backbones.transform import ImageTransform

_AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Backbone:
    """A frozen feature extractor: images in, pooled features out.

    Every forward pass has the one shape (batch_size, 3, input_size, input_size), the last batch being padded with
    zeros, because kernels round differently at different batch shapes. So an image's features are the same to the bit
    whatever images come before, after or beside it (on one machine, library version and number of threads).

    Parameters
    ----------
    name : str
        Of the architecture; it enters the fingerprint.
    module : nn.Module
        Maps (B, 3, H, W) float32 to (B, feature_dim). It is put in eval mode, frozen, and moved to the device.
    transform : ImageTransform
        What the network was trained to see.
    weights_source : str
        Where its weights came from, in words.
    batch_size : int
        Images per forward pass.
    device : str
        "cpu", "cuda", "cuda:N", "mps", or "auto" (cuda where there is one, else cpu).
    autocast : {"none", "bf16", "fp16"}
        Compute in lower precision: bf16 on cpu and cuda, fp16 on cuda. Features still come out in float32. "none" means
        full float32, also where the GPU would use TF32 for convolutions.
    channels_last : bool
        Lay images out as NHWC in memory, often faster.

    Attributes
    ----------
    name, module, weights_source, batch_size, autocast, channels_last
        As given; module is frozen.
    device : torch.device
        Where features are computed and returned.
    feature_dim : int
        Length d of a feature vector.
    fingerprint : str
        Hex sha256 of name, weights and transform: of all that decides what features mean, and not of batch size,
        device, precision or memory layout. Statistics may be added where fingerprints are equal.

    Raises
    ------
    ValueError
        If an option has a value that is not allowed or this machine cannot serve, or the network does not turn an image
        of input_size into one vector.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        transform: ImageTransform,
        *,
        weights_source: str,
        batch_size: int = 32,
        device: str = "auto",
        autocast: str = "none",
        channels_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.name = name
        self.weights_source = weights_source
        self.batch_size = batch_size
        self.device = _resolve_device(device)
        self.autocast = autocast
        self.channels_last = channels_last
        self._autocast_dtype = _resolve_autocast(autocast, self.device)
        self._memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self._transform = transform
        self.fingerprint = _fingerprint(name, module, transform)
        self.feature_dim = _measure_feature_dim(name, module.cpu().eval().requires_grad_(False), transform.input_size)
        self.module = module.to(self.device).to(memory_format=self._memory_format)

    def __repr__(self) -> str:
        size = f"{self.input_size}x{self.input_size} -> {self.feature_dim}"
        return f"Backbone({self.name}, {size}, {self.weights_source}, {self.device}, {self.fingerprint[:12]})"

    @property
    def input_size(self) -> int:
        """Side of the square image that the network sees, in pixels."""
        return self._transform.input_size

    @property
    def transform_spec(self) -> dict[str, object]:
        """The transform as values that JSON can hold."""
        return self._transform.spec

    def transform(self, image: Image.Image) -> Tensor:
        """Turn an RGB image into the (3, input_size, input_size) float32 tensor on the CPU that the network takes."""
        return self._transform(image)

    def extract(self, images: Iterable[Image.Image]) -> Iterator[Tensor]:
        """Compute the features of any number of images, in their order.

        Parameters
        ----------
        images : iterable of PIL.Image.Image
            In mode RGB, read one at a time: they need not fit into memory.

        Yields
        ------
        Tensor
            (b, feature_dim) float32 on the device, b = batch_size but in the last batch, which has the rest.
        """
        batch = torch.empty(
            (self.batch_size, 3, self.input_size, self.input_size),
            memory_format=self._memory_format,
            pin_memory=self.device.type == "cuda",
        )
        rows = batch.numpy()  # the same memory, copied into by one thread: torch's pool is slow where cores are shared
        filled = 0
        for image in images:
            rows[filled] = self.transform(image).numpy()
            filled += 1
            if filled == self.batch_size:
                yield self.forward_batch(batch)
                filled = 0
        if filled:
            rows[filled:] = 0
            yield self.forward_batch(batch)[:filled]

    def forward_batch(self, batch: Tensor) -> Tensor:
        """Compute the features of one full batch of transformed images.

        Parameters
        ----------
        batch : Tensor
            (batch_size, 3, input_size, input_size) float32, on any device; it is left as it was.

        Returns
        -------
        Tensor
            (batch_size, feature_dim) float32 on the device; without gradient, but it may enter autograd.

        Raises
        ------
        ValueError
            If the batch has another shape or dtype: a fixed shape is what makes features reproducible.
        """
        expected = (self.batch_size, 3, self.input_size, self.input_size)
        if tuple(batch.shape) != expected or batch.dtype != torch.float32:
            raise ValueError(f"{self.name} takes batches {expected} float32, got {tuple(batch.shape)} {batch.dtype}")
        self.module.eval()  # every time: whoever holds the module may have called train()
        with torch.inference_mode(), self._precision():
            features: Tensor = self.module(batch.to(self.device).contiguous(memory_format=self._memory_format))
        return features.to(torch.float32, copy=True)  # outside inference mode, so that the copy is no inference tensor

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self.device.type == "cuda":
                stack.enter_context(
                    torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
                )
            if self._autocast_dtype is not None:
                stack.enter_context(torch.autocast(self.device.type, dtype=self._autocast_dtype))
            yield


def _resolve_device(device: str) -> torch.device:
    allowed = "auto, cpu, cuda, cuda:N, mps"
    if device == "auto":
        # Not mps: it has no float64, in which statistics are accumulated on the backbone's device.
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be one of {allowed}; got {device!r}") from error
    if resolved.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device must be one of {allowed}; got {device!r}")
    num_devices = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (resolved.index or 0) >= num_devices[resolved.type]:
        found = num_devices[resolved.type]
        raise ValueError(f"device {device!r} is not on this machine: {resolved.type} devices found: {found}")
    return resolved


def _resolve_autocast(autocast: str, device: torch.device) -> torch.dtype | None:
    if autocast == "none":
        return None
    if autocast not in _AUTOCAST_DTYPES:
        raise ValueError(f"autocast must be one of none, {', '.join(_AUTOCAST_DTYPES)}; got {autocast!r}")
    if device.type == "mps" or (device.type == "cpu" and autocast == "fp16"):
        raise ValueError(f"autocast {autocast!r} is not available on {device.type}: cpu takes bf16, cuda bf16 and fp16")
    return _AUTOCAST_DTYPES[autocast]


def _fingerprint(name: str, module: nn.Module, transform: ImageTransform) -> str:
    """Hash the architecture's name, every weight (name, dtype, shape, bytes) and the transform."""
    digest = hashlib.sha256(json.dumps([name, transform.spec], sort_keys=True).encode())
    for key, value in module.state_dict().items():
        if key.endswith("num_batches_tracked"):
            continue  # a counter of training steps: some files lack it, and no feature depends on it
        tensor = value.detach().cpu().contiguous()
        digest.update(json.dumps([key, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _measure_feature_dim(name: str, module: nn.Module, input_size: int) -> int:
    """Run one blank image through the network: it must become one finite vector."""
    try:
        with torch.inference_mode():
            features = module(torch.zeros(1, 3, input_size, input_size))
    except (RuntimeError, ValueError, AssertionError) as error:  # the last is how timm refuses a size
        raise ValueError(f"{name} cannot take images of {input_size} x {input_size} pixels: {error}") from error
    if features.ndim != 2 or features.shape[0] != 1 or not bool(features.isfinite().all()):
        raise ValueError(f"{name} must turn an image into one finite vector (1, d), got shape {tuple(features.shape)}")
    return int(features.shape[1])
