"""The option that names trackers."""

from __future__ import annotations

from dataclasses import dataclass

from fedstats_app.settings.option import Options, option, some_of

TRACKERS = ("tensorboard", "mlflow", "wandb")


@dataclass(frozen=True)
class TrackerOptions(Options):
    """To which trackers, beside the run folder's own files, the server writes metrics."""

    tracker: str = option(
        "none",
        some_of(TRACKERS, "none"),
        "some of tensorboard,mlflow,wandb (offline): metrics in the run folder too (extras)",
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The trackers, in the order asked for."""
        return () if self.tracker == "none" else tuple(self.tracker.split(","))
