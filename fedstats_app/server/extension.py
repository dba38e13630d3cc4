"""A run that adds its clients to the statistics of an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedstats_app.grid.class_lists import ClassList, align_class_lists
from fedstats_app.grid.federation_options import FederationOptions
from fedstats_app.report.statistics_file import load_statistics, take_over
from fedstats_app.statistics.collected import CollectedStatistics
from fedstats_app.strategies import StatisticsStrategy


class Extension:
    """Statistics of the earlier run that this one extends, if any.

    Parameters
    ----------
    options : FederationOptions
        Whose ``extend`` names a run folder, or is "".

    Attributes
    ----------
    class_names : tuple of str
        The classes that there are already.
    num_clients, num_examples : int
        Clients and samples that are in the sums already.
    num_added : int
        Labels that the run adds of those samples, if it adds nothing else; else 0.

    Raises
    ------
    FileNotFoundError, ValueError
        If the folder has no statistics that can be read.
    """

    def __init__(self, options: FederationOptions) -> None:
        earlier = load_statistics(options.extend) if options.extend else None
        if earlier is not None and earlier.num_examples and not any(client.digest for client in earlier.clients):
            raise ValueError(
                "extend: the statistics are secure sums, of which no client's part is known: one that comes again "
                "would count twice; run again with all clients"
            )
        self._earlier: CollectedStatistics | None = earlier
        self._folder, self._min_clients = options.extend, options.min_clients
        self.class_names = earlier.class_names if earlier is not None else ()
        self._clients = earlier.clients if earlier is not None else ()
        self.num_clients = len(self._clients)
        self.num_examples = earlier.num_examples if earlier is not None else 0
        self.num_added = 0

    @property
    def min_clients(self) -> int:
        """Number of clients that must come: min-clients less those of the earlier run."""
        return max(self._min_clients - self.num_clients, 1)

    def with_earlier_classes(self, class_names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the classes of both: the longer list where it has the other, else all in sorted order.

        Raises
        ------
        ValueError
            If names conflict; both lists are in the message.
        """
        self.num_added = len(class_names) if self.adds_labels(class_names) else 0
        _, refused = align_class_lists({0: ClassList(class_names)}, self.class_names)
        if refused:
            raise ValueError(f"{'extend' if self.class_names else 'dataset'}: {refused[0]}")
        for names, others in ((class_names, self.class_names), (self.class_names, class_names)):
            if set(others) <= set(names):
                return names
        return tuple(sorted({*class_names, *self.class_names}))

    def adds_labels(self, class_names: tuple[str, ...]) -> bool:
        """Return whether these labels are all others than those of the earlier run: of the same samples, then."""
        labels = self._earlier is not None and self._earlier.spec.targets
        return bool(labels) and not set(class_names) & set(self.class_names)

    def apply(self, strategy: StatisticsStrategy, class_names: tuple[str, ...]) -> None:
        """Start a strategy from the earlier statistics.

        Raises
        ------
        ValueError
            If they have another backbone or specification.
        """
        if self._earlier is not None:
            strategy.extend(self._earlier.with_class_names(class_names))
            self._earlier = None  # the strategy has its own copy, and one can be large

    def take_over_clients(self, folder: Path, say: Callable[[str], None]) -> None:
        """Link the files of earlier single clients into this run's folder, and print how many are missing.

        Those of a run that only adds labels lack them.
        """
        if not self._clients or self.num_added:
            return
        earlier = Path(self._folder).expanduser()
        missing = take_over(earlier if earlier.is_dir() else earlier.parent, folder, self._clients)
        if missing:
            say(
                f"{len(missing)} of {len(self._clients)} earlier clients were not kept one by one "
                "(save-statistics = clients), so no client can be removed from this run"
            )

    def to_json(self) -> dict[str, object] | None:
        """Make the entry of results.json; None where there was nothing before."""
        if not self._folder:
            return None
        return {
            "run_folder": self._folder,
            "num_clients": self.num_clients,
            "num_examples": self.num_examples,
            "class_names": list(self.class_names),
        }
