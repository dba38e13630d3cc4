"""Options of the federation: who is asked, for how long, and what may leave. No torch is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from fedstats_app.grid.class_memory import classes_that_fit, machine_bytes
from fedstats_app.settings.option import Options, number, one_of, option, run_folder, whole


@dataclass(frozen=True)
class FederationOptions(Options):
    """Who is asked, how long is waited, how much is in flight; what may leave a client; what clients are added to."""

    wire_dtype: str = option("float32", one_of("float32", "float64"))
    fraction_train: float = option(1.0, number(0.0, 1.0, open_low=True))
    min_clients: int = option(2, whole(1, 1_000_000))
    wait_timeout: float = option(120.0, number(0.0, 1e7, open_low=True))
    settle_seconds: float = option(10.0, number(0.0, 1e7))
    reply_timeout: float = option(600.0, number(0.0, 1e7, open_low=True))
    window_megabytes: int = option(128, whole(1, 100_000))
    min_class_count: int = option(0, whole(0, 1_000_000))
    max_classes: int = option(0, whole(0, 1_000_000))
    max_class_share: float = option(1.0, number(0.0, 1.0, open_low=True))
    max_client_share: float = option(1.0, number(0.0, 1.0, open_low=True))
    max_client_samples: int = option(1_000_000, whole(1, 2**62))
    extend: str = option("", run_folder)

    def classes_allowed(self, feature_dim: int, num_methods: int) -> int | None:
        """Return the most classes of all clients together: as set, or as many as half of the memory takes.

        Parameters
        ----------
        feature_dim : int
            d of the backbone.
        num_methods : int
            Methods of the run.

        Returns
        -------
        int or None
            None where neither is known.
        """
        memory = machine_bytes()
        return self.max_classes or (None if memory is None else classes_that_fit(feature_dim, num_methods, memory // 2))

    @property
    def window_bytes(self) -> int:
        """Replies outstanding at a time, in bytes."""
        return self.window_megabytes * 2**20
