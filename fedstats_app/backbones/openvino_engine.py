"""A frozen network by OpenVINO: exported once to the cache, then one sample an inference and one thread each.

With one sample an inference features depend neither on those beside it nor on how many threads there are, and no
batch is padded. Several inferences run side by side, while the caller reads the next samples.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedstats_app import __version__
from fedstats_app.backbones.engine import BOUND, EngineError, openvino_version
from fedstats_app.backbones.transform import InputTransform
from fedstats_app.base.files import read_tensors, write_tensors

logger = logging.getLogger("fedstats_app")

FOLDER = "engines"


class OpenVINOEngine:
    """Runs a network for one sample at a time: an image of one shape, or a text of any length.

    Parameters
    ----------
    module : nn.Module
        Frozen, on the CPU: (B, *shape) -> (B, d) for each of the transform's shapes. It is not changed.
    fingerprint : str
        Of weights, name and transform: the export is kept under it.
    transform : InputTransform
        Of the network.
    root : Path
        Folder of the caches; the export lies in ``engines``.
    bfloat16 : bool
        Compute in bfloat16; features come out in float32 all the same.
    """

    def __init__(
        self, module: nn.Module, fingerprint: str, transform: InputTransform, root: Path, *, bfloat16: bool
    ) -> None:
        self._module, self._transform, self._bfloat16 = module, transform, bfloat16
        # -1 where samples differ: one export serves texts of all lengths.
        self._shape = tuple(sides[0] if len(set(sides)) == 1 else -1 for sides in zip(*transform.shapes, strict=True))
        parts = (fingerprint, *map(str, self._shape), openvino_version(), torch.__version__, __version__)
        self._file = root / FOLDER / hashlib.sha256("\n".join(parts).encode()).hexdigest()
        self._compiled: Any = None
        self._idle: list[Any] = []

    def prepare(self) -> None:
        """Export the network unless that was done before, by this process or another.

        Raises
        ------
        EngineError
            If it cannot be exported, or its features differ from torch's by more than ``BOUND``; that is remembered.
        """
        if self._compiled is not None or self._read() is not None:
            return
        started = time.perf_counter()
        try:
            graph, weights = self._exported()
        except EngineError as error:
            _write(self._file, {}, {"error": str(error)})
            raise
        _write(self._file, {"graph": graph, "weights": weights}, {})
        logger.info("exported the network to OpenVINO in %.1f s", time.perf_counter() - started)

    def extract(self, inputs: Iterable[Tensor]) -> Iterator[Tensor]:
        """Compute features; the network is compiled when the first input comes, since features may all be known.

        Parameters
        ----------
        inputs : iterable of Tensor
            As they come from the transform, on the CPU; twice as many as there are threads are read ahead.

        Yields
        ------
        Tensor
            (d,) float32, in the order of the inputs.

        Raises
        ------
        EngineError
            As :meth:`prepare`.
        """
        running: deque[Any] = deque()
        try:
            for sample in inputs:
                self._compile()
                if len(running) == 2 * torch.get_num_threads():
                    yield self._finished(running)
                request = self._idle.pop() if self._idle else self._compiled.create_infer_request()
                request.start_async({0: sample.numpy()[None]})
                running.append(request)
            while running:
                yield self._finished(running)
        finally:
            while running:
                self._finished(running)

    def _finished(self, running: deque[Any]) -> Tensor:
        request = running.popleft()
        request.wait()
        features = torch.from_numpy(request.get_output_tensor(0).data[0].copy())
        self._idle.append(request)
        return features

    def _compile(self) -> None:
        if self._compiled is not None:
            return
        self.prepare()
        content = self._read()
        if content is None:  # the disk is full: the export could not be kept
            content = self._exported()
        self._compiled = _compiled(*content, bfloat16=self._bfloat16)

    def _read(self) -> tuple[bytes, bytes] | None:
        """Return an export that is whole; raise what stood in its way if it was tried; None if there is none."""
        if not self._file.is_file():
            return None
        try:
            tensors, metadata = read_tensors(self._file)
        except ValueError as error:
            logger.warning("the exported network is made again: %s", error)
            return None
        if "error" in metadata:
            raise EngineError(metadata["error"])
        return tensors["graph"].numpy().tobytes(), tensors["weights"].numpy().tobytes()

    def _exported(self) -> tuple[bytes, bytes]:
        """Return graph and weights in OpenVINO's format, after comparing features with torch's."""
        import openvino

        samples = self._transform.probes()
        probes = [sample[None] for sample in samples]
        kind = openvino.Type.i64 if self._transform.dtype == torch.int64 else openvino.Type.f32
        module = copy.deepcopy(self._module).to(memory_format=torch.contiguous_format).eval()
        try:
            # What tracing and conversion warn of and print is for their developers.
            with warnings.catch_warnings(), torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
                warnings.simplefilter("ignore")
                expected = module(self._transform.stack(samples))
                traced = torch.jit.trace(module, probes[0], check_trace=False)  # type: ignore[no-untyped-call]
                model = openvino.convert_model(
                    torch.jit.freeze(traced),
                    example_input=probes[0],
                    input=[(openvino.PartialShape([1, *self._shape]), kind)],
                )
                file = Path(folder) / "network.xml"
                openvino.save_model(model, file, compress_to_fp16=False)
                content = file.read_bytes(), file.with_suffix(".bin").read_bytes()
            compiled = _compiled(*content, bfloat16=False)
            made = torch.cat([torch.from_numpy(compiled(probe.numpy())[0].copy()) for probe in probes])
        except Exception as error:  # whatever a library that reads a stranger's network raises
            first = str(error).strip().partition("\n")[0]
            raise EngineError(f"OpenVINO cannot run this network ({type(error).__name__}: {first:.200})") from error
        largest = float(((made - expected).norm(dim=1) / expected.norm(dim=1)).max())
        if not largest <= BOUND:
            raise EngineError(f"OpenVINO's features differ from torch's by {largest:.1e}, more than {BOUND:.0e}")
        return content


def _compiled(graph: bytes, weights: bytes, *, bfloat16: bool) -> Any:
    import openvino

    core = openvino.Core()
    if bfloat16 and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        # OpenVINO would quietly compute in float32, under the fingerprint of bfloat16.
        raise EngineError("this processor does not compute in bfloat16")
    threads = torch.get_num_threads()
    settings = {
        # Said in any case: on processors with matrix units OpenVINO would take bfloat16 by itself.
        "INFERENCE_PRECISION_HINT": "bf16" if bfloat16 else "f32",
        "NUM_STREAMS": str(threads),
        "INFERENCE_NUM_THREADS": threads,
        # Processes that share cores would all be pinned to the same ones.
        "ENABLE_CPU_PINNING": False,
    }
    return core.compile_model(core.read_model(model=graph, weights=weights), "CPU", settings)


def _write(file: Path, content: dict[str, bytes], metadata: dict[str, str]) -> None:
    tensors = {name: torch.frombuffer(bytearray(part), dtype=torch.uint8) for name, part in content.items()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(file, tensors, metadata)
    except OSError as error:
        logger.warning("the exported network could not be kept in %s: %s", file, error)
