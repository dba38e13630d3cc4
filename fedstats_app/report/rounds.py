"""What a round of training achieved and cost, and rounds.jsonl, also where a run was killed and went on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from fedstats_app.storage.files import append_line, write_atomically
from fedstats_app.storage.json_digest import read_json_lines, to_json_with_digest


@dataclass(frozen=True)
class RoundRecord:
    """One round of one training: one line of rounds.jsonl.

    A round is one aggregation. Bytes and forward passes are those of this round alone, of all its clients together.

    Attributes
    ----------
    stage : str
        What is trained: `probe` (the head), `full`, `features` (the backbone under a fixed head), ...
    start : str
        What the training started from: a method such as `fedcof`, or `random`.
    round : int
        Absolute, also after the run was resumed; 0 is the start, before any training.
    accuracy : float or None
        Share of test samples classified correctly, 0 to 1; None where nothing was evaluated.
    loss : float or None
        Mean cross-entropy on the test samples (natural logarithm).
    train_loss : float or None
        Mean over the samples of the clients' own losses in their last local epoch.
    num_clients : int
        Clients whose updates were averaged.
    num_failed : int
        Clients that were asked and whose updates were not.
    bytes_up, bytes_down : int
        From and to the clients.
    forward_passes : int
        Passes of one sample through the backbone; the backward pass counts as two.
    seconds : float
        Wall-clock time.
    bytes_catch_up : int
        To clients besides, for what they have missed or to begin with (FedMeZO).
    held_out_accuracy : float or None
        On what clients hold out, where that chooses the round whose model is kept.
    """

    stage: str
    start: str
    round: int
    accuracy: float | None = None
    loss: float | None = None
    train_loss: float | None = None
    num_clients: int = 0
    num_failed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    forward_passes: int = 0
    seconds: float = 0.0
    bytes_catch_up: int = 0
    held_out_accuracy: float | None = None

    @property
    def num_bytes(self) -> int:
        """All bytes of the round."""
        return self.bytes_up + self.bytes_down + self.bytes_catch_up

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        if self.accuracy is not None and not 0.0 <= self.accuracy <= 1.0:
            raise ValueError(f"{self._who()}: accuracy must be between 0 and 1 or None, got {self.accuracy}")
        counted = ("round", "num_clients", "num_failed", "bytes_up", "bytes_down", "bytes_catch_up", "forward_passes")
        for name in (*counted, "seconds"):
            amount = getattr(self, name)
            if not amount >= 0:
                raise ValueError(f"{self._who()}: {name} must be at least 0, got {amount}")

    def to_json(self) -> dict[str, object]:
        """Give the line for rounds.jsonl: field name to value, in the order of the fields."""
        return asdict(self)

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Read what `to_json` gave, also after it was written by `fedstats_app.storage.files.to_json`.

        Parameters
        ----------
        line : mapping
            A loss may be the string `"inf"`, which JSON has instead of an infinite number.

        Raises
        ------
        ValueError
            If a field is missing or unknown, or a value is outside its range.
        """
        expected = [item.name for item in fields(cls)]
        # Runs of versions that had no FedMeZO, or kept the last round always, lack these.
        line = {"bytes_catch_up": 0, "held_out_accuracy": None, **line}
        if set(line) != set(expected):
            raise ValueError(f"a round must have {', '.join(expected)}, got {', '.join(sorted(line))}")
        losses = {name: None if line[name] is None else float(line[name]) for name in ("loss", "train_loss")}
        return cls(**{**line, **losses})

    def _who(self) -> str:
        return f"{self.start}-{self.stage}, round {self.round}"


class RoundsFile:
    """The file while a run adds to it.

    Parameters
    ----------
    path : Path
        The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: dict[tuple[str, str], int] = {}  # by training, its last round from this process

    def append(self, record: RoundRecord) -> None:
        """Add one round's line.

        Rounds of the same training from this one on, which a run that was killed after its last checkpoint left there,
        are removed before; so is the same round, of which there is more to say.
        """
        training = (record.stage, record.start)
        if self._last.get(training, record.round) >= record.round:
            self._forget(training, record.round)
        self._last[training] = record.round
        append_line(self.path, _line(record))

    def _forget(self, training: tuple[str, str], first: int) -> None:
        if not self.path.is_file():
            return
        kept = [one for one in read_rounds(self.path) if (one.stage, one.start) != training or one.round < first]
        write_atomically(self.path, "".join(_line(one) + "\n" for one in kept).encode())


def read_rounds(path: Path) -> list[RoundRecord]:
    """Read a rounds.jsonl.

    A run that was killed between two checkpoints repeats rounds when it is resumed: the later line of a round counts.
    What a crash left of a last line is left out, and said so in the log.

    Parameters
    ----------
    path : Path
        The file; where there is none there are no rounds.

    Returns
    -------
    list of RoundRecord
        By training, in the order in which they began, and by round.

    Raises
    ------
    ValueError
        If a line other than a cut last one is damaged or no round; the message says which.
    """
    found: dict[tuple[str, str], dict[int, RoundRecord]] = {}
    for number, line in enumerate(read_json_lines(path) if path.is_file() else (), start=1):
        try:
            record = RoundRecord.from_json(line)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: not a round: {error}") from error
        found.setdefault((record.stage, record.start), {})[record.round] = record
    return [training[number] for training in found.values() for number in sorted(training)]


def _line(record: RoundRecord) -> str:
    return to_json_with_digest(record.to_json(), indent=None)
