"""rounds.jsonl: one line per round of training, also where a run was killed and went on."""

from __future__ import annotations

from pathlib import Path

from fedstats_app.report.training_record import RoundRecord
from fedstats_app.storage.files import append_line, write_atomically
from fedstats_app.storage.json_digest import read_json_lines, to_json_with_digest


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
