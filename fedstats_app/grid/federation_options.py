"""Options of the federation: who is asked, for how long, what may leave. No torch is imported here."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fedstats_app.base.option import Options, flag, number, one_of, option, run_folder, whole
from fedstats_app.base.threads import machine_bytes
from fedstats_app.methods import cannot_add, cannot_be_noisy
from fedstats_app.secure.account import MOST_DELTA, MOST_EPSILON, PLACES, Promise

_OF_NOISE = ("dp-delta", "dp-where", "dp-samples", "dp-unit", "dp-per-person")
# Of HeadScores: a histogram of 1,281 bins of samples of each class, one of the others, and a row of a matrix.
_BYTES_PER_CLASS, _BYTES_PER_CELL = 2 * 8 * 1281, 8


def classes_that_fit(feature_dim: int, num_methods: int, memory: int) -> int:
    """Return the most classes C of which a run keeps about ``memory`` bytes at most; at least 1.

    For each method sums and heads, 3 x 8 C d, and twice its scores, a C + b C^2; and those of one reply, 2 x 8 C d.

    Parameters
    ----------
    feature_dim : int
        d.
    num_methods : int
        Methods of the run.
    memory : int
        In bytes.
    """
    square = 2 * num_methods * _BYTES_PER_CELL
    each = 2 * num_methods * _BYTES_PER_CLASS + (3 * num_methods + 2) * 8 * feature_dim
    return max((math.isqrt(each**2 + 4 * square * memory) - each) // (2 * square), 1)


@dataclass(frozen=True)
class FederationOptions(Options):
    """Clients, waiting, limits: what may leave a client, and what clients are added to."""

    wire_dtype: str = option(
        "float16",
        one_of("float64", "float32", "float16", "int8"),
        "float64 | float32 | float16 | int8, on the wire",
    )
    exact_sums: bool = option(False, flag, "rounds features: the same bits for any split (float64)")
    secure_sums: str = option("off", one_of("off", "on"), "off | on = the server sees only sums")
    dp_epsilon: float = option(0.0, number(0.0, MOST_EPSILON), "above 0: noise hides every sample")
    dp_delta: float = option(0.0, number(0.0, MOST_DELTA), "0 = dp-samples to the power of -1.1")
    dp_where: Literal["sites", "local"] = option(
        "sites", one_of(*PLACES), "who adds it: sites, in shares | local, each site all of it"
    )
    dp_samples: int = option(0, whole(0, 10**9), "of all clients, declared; 0 = a simulation's own")
    dp_unit: Literal["sample", "person"] = option(
        "sample", one_of("sample", "person"), "what noise hides: a sample | a person (person-column)"
    )
    dp_per_person: int = option(1, whole(1, 1_000_000), "samples that a person gives (dp-unit = person)")
    min_clients: int = option(2, whole(1, 1_000_000), "fewer answers than this fail the run")
    wait_timeout: float = option(120.0, number(0.0, 1e7, open_low=True), "seconds to wait for SuperNodes")
    settle_seconds: float = option(10.0, number(0.0, 1e7), "seconds without a new SuperNode before a run starts")
    reply_timeout: float = option(600.0, number(0.0, 1e7, open_low=True), "seconds per client and request")
    min_class_count: int = option(0, whole(0, 1_000_000), "smaller classes do not leave a client")
    max_client_samples: int = option(1_000_000, whole(1, 2**62), "a client that claims more is rejected")
    extend: str = option("", run_folder, "/PATH/TO/RUN_FOLDER to add clients to")

    @property
    def sums_only(self) -> bool:
        """True if only sums over all clients are known, and nothing of single ones is kept."""
        return self.secure_sums != "off" or self.is_noisy

    @property
    def is_noisy(self) -> bool:
        """True if noise is added to sums."""
        return self.dp_epsilon > 0

    def promise(self, num_samples: int) -> Promise | None:
        """Make the promise to each of the samples, unless ``dp-samples`` declares another number.

        Raises
        ------
        ValueError
            If there are none, or delta promises nothing for their number.
        """
        number = self.dp_samples or num_samples
        if not self.is_noisy:
            return None
        if not number:
            raise ValueError("dp-samples: SuperNodes with data of their own need a declared number of samples, got 0")
        delta = self.dp_delta or number**-1.1
        if not delta < min(1 / number, MOST_DELTA):
            raise ValueError(f"dp-delta: must be below 1 / {number:,} samples and {MOST_DELTA}, got {delta:.3g}")
        return Promise(self.dp_epsilon, delta, number, self.dp_where, self.given)

    @property
    def given(self) -> int:
        """Samples that one person gives at most to sums with noise; 0 where samples are the unit."""
        return self.dp_per_person if self.dp_unit == "person" else 0

    def problems(self) -> list[str]:
        """List what is wrong with the values together."""
        if self.dp_per_person != 1 and not self.given:
            return ["dp-per-person: needs dp-unit = person"]
        if self.is_noisy:
            masks = "on" if self.dp_where == "sites" else "off"
            wrong = {"secure-sums": (masks, self.secure_sums), "min-class-count": (0, self.min_class_count)}
            place = f"with dp-where = {self.dp_where}"
            return [
                f"dp-epsilon: needs {key} = {want}, got {got}, {place}"
                for key, (want, got) in wrong.items()
                if got != want
            ]
        usual, given = FederationOptions().to_config(), self.to_config()
        return [f"{key}: needs a dp-epsilon" for key in _OF_NOISE if given[key] != usual[key]]

    def conflicts(self, config: Any) -> Iterator[str]:
        """Say what needs to see single clients, or sends something of them in clear, beside sums alone."""
        if not self.sums_only:
            return
        because = "dp-epsilon" if self.secure_sums == "off" else "secure-sums"
        for key, found, is_allowed, allowed in (
            ("fine-tune", config.run.fine_tune, config.run.fine_tune == "none", "none"),
            ("save-statistics", config.run.save_statistics, not config.run.saves_clients, "sum or none"),
            ("resume", config.run.resume, not config.run.resume, "empty"),
            ("extend", self.extend, not self.extend, "empty"),
            ("min-class-count", self.min_class_count, not self.min_class_count, "0"),
        ):
            if not is_allowed:
                yield f"{because}: {key} must be {allowed}, because only sums over clients are used, got {found!r}"
        for name in config.methods:
            with contextlib.suppress(ValueError):  # the run's options refuse an unknown variant
                method = config.configured(name)
                if reason := (cannot_be_noisy if self.is_noisy else cannot_add)(method):
                    yield f"{'dp-epsilon' if self.is_noisy else 'secure-sums'}: {reason}"
        if self.is_noisy and config.backbone.expands_features:
            yield f"dp-epsilon: feature-map must be none or unit, got {config.backbone.feature_map!r}"
        if self.is_noisy and (flips := config.partition.training_flips) != "none":
            yield f"dp-epsilon: partition.flips must be none, because a sample would count twice, got {flips}"

    def classes_allowed(self, feature_dim: int, num_methods: int) -> int | None:
        """Return how many classes of all clients half of the memory takes; None if the memory is not known."""
        memory = machine_bytes()
        return None if memory is None else classes_that_fit(feature_dim, num_methods, memory // 2)
