"""TensorBoard: event files in the run folder's `tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from fedstats_app.report.trackers.tracker import State, Tracker


def start(folder: Path, run_id: str, settings: Mapping[str, object]) -> Tracker:
    """Begin, or go on in another event file, which TensorBoard shows as the same run."""
    return _TensorBoard(folder, settings)


class _TensorBoard:
    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self._writer = SummaryWriter(str(folder / "tensorboard"))
        rows = "".join(f"| {key} | {value} |\n" for key, value in settings.items())
        self._text("settings", f"| key | value |\n|---|---|\n{rows}")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def file(self, path: Path) -> None:
        if path.suffix == ".png":
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
            self._writer.add_image(path.stem, pixels, dataformats="HWC")
        else:
            self._text(path.name, path.read_text(encoding="utf-8"))

    def finish(self, state: State) -> None:
        self._text("state", state)
        self._writer.close()

    def _text(self, name: str, text: str) -> None:
        self._writer.add_text(name, text)
