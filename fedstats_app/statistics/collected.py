"""All that a server has collected, as a value: what one run leaves and a later one adds its clients to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedstats_app.statistics.client_statistics import ClientStatistics
from fedstats_app.statistics.specification import StatisticsSpec
from fedstats_app.statistics.statistics_sum import StatisticsSum


def client_digest(client: ClientStatistics) -> str:
    """Return what identifies a client's statistics: the SHA-256 of its counts and its class sums in float32.

    It does not depend on how classes are numbered, nor on whether sums travelled in float32 or float64. Nobody can
    learn the statistics from it; who has them can recognise them. A client without samples has none: "".
    """
    rows = client.rows
    if not len(rows):
        return ""
    sums = rows.class_sums.to("cpu", torch.float32).numpy().astype("<f4")
    counts = rows.counts.to("cpu").numpy().astype("<i8")
    of_counts, of_sums = counts.tobytes(), sums.tobytes()
    step = len(of_sums) // len(rows)
    parts = sorted(
        of_counts[8 * row : 8 * (row + 1)] + of_sums[step * row : step * (row + 1)] for row in range(len(rows))
    )
    return hashlib.sha256(b"".join(parts)).hexdigest()


@dataclass(frozen=True)
class MergedClient:
    """One client in a sum.

    Attributes
    ----------
    digest : str
        :func:`client_digest` of what it sent.
    run : str
        The run in which it was merged.
    client : int
        Its id in that run.
    name : str
        That its owner gave it, by which it is known when its data have changed; "" for none.
    """

    digest: str
    run: str
    client: int
    name: str = ""


@dataclass(frozen=True, eq=False)
class CollectedStatistics:
    """The merged statistics of all clients of one or several runs.

    Attributes
    ----------
    class_names : tuple of str
        C different names, in the order of their ids.
    specs : tuple of StatisticsSpec
        One sum for each.
    sums : tuple of StatisticsSum
        Over the clients.
    backbone_fingerprint : str
        Of the backbone that made the features.
    clients : tuple of MergedClient
        In the order in which they were merged.

    Raises
    ------
    ValueError
        If there are not as many sums as specifications, or sums of other classes or kinds.
    """

    class_names: tuple[str, ...]
    specs: tuple[StatisticsSpec, ...]
    sums: tuple[StatisticsSum, ...]
    backbone_fingerprint: str
    clients: tuple[MergedClient, ...]

    def __post_init__(self) -> None:
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError("class_names must differ, got one twice")
        if not self.specs or len(self.sums) != len(self.specs):
            raise ValueError(
                f"there must be specifications and one sum for each, got {len(self.sums)} for {len(self.specs)}"
            )
        for spec, total in zip(self.specs, self.sums, strict=True):
            wanted = _kind(len(self.class_names), gram=spec.gram, scatter=spec.scatter is not None)
            found = _kind(total.num_classes, gram=total.has_gram, scatter=total.has_scatter)
            if found != wanted:
                raise ValueError(f"a sum must have {wanted}, as class names and specification say, got {found}")

    @property
    def num_examples(self) -> int:
        """Number of samples."""
        return self.sums[0].num_examples

    def with_class_names(self, class_names: Sequence[str]) -> CollectedStatistics:
        """Return a copy whose classes are these, which must include its own; classes are matched by name.

        Raises
        ------
        ValueError
            If one of its classes is not among them.
        """
        position = {name: new for new, name in enumerate(class_names)}
        missing = [name for name in self.class_names if name not in position]
        if missing:
            raise ValueError(
                f"the new class names must include all {len(self.class_names)} old ones, {missing} are not"
            )
        new_ids = torch.tensor([position[name] for name in self.class_names], dtype=torch.int64)
        sums = tuple(total.renumbered(new_ids, len(class_names)) for total in self.sums)
        return replace(self, class_names=tuple(class_names), sums=sums)


def _kind(num_classes: int, *, gram: bool, scatter: bool) -> str:
    return (
        f"{num_classes} classes, {'a' if gram else 'no'} Gram matrix and {'a' if scatter else 'no'} factor of scatter"
    )
