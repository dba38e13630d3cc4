"""What the real trackers have written of a run, read back with their own readers."""

from __future__ import annotations

from pathlib import Path

Points = dict[str, list[tuple[int, float]]]


def tensorboard_points(folder: Path) -> Points:
    """Return (step, value) of every scalar."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def tensorboard_others(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of texts and of images."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags = EventAccumulator(str(folder / "tensorboard")).Reload().Tags()
    return sorted(tag.removesuffix("/text_summary") for tag in tags["tensors"]), sorted(tags["images"])
