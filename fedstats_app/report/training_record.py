"""Records of a training: one line of rounds.jsonl per round, the result, and the costs by formula."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from fedstats_app.base.files import read_json_lines, to_json
from fedstats_app.heads import Calibration
from fedstats_app.report.method_result import UNSCORED

RANDOM_START = "random"
BYTES_PER_NUMBER = 4
_DIRECTIONS = 2


def forward_passes(per_sample: int, *, num_examples: int, num_rounds: int = 1, repeats: int = 1) -> int:
    """Count the forward passes of a stage by the thesis's formula; the head, which is one layer, counts as nothing.

    Parameters
    ----------
    per_sample : int
        Of one sample in one repeat: 1 for the closed form and for a probe, whose features the thesis does not keep,
        3 where training goes through the backbone, 2 without gradients.
    num_examples : int
        N, the samples of the clients of one round; of all clients for the closed form.
    num_rounds : int
        R, aggregations.
    repeats : int
        E, a client's passes over its data in a round; directions without gradients.
    """
    return per_sample * num_examples * num_rounds * repeats


def training_bytes(num_rounds: int, clients_per_round: int, num_parameters: int) -> int:
    """Count the bytes of training, down and up, of all clients and rounds together.

    Every client of a round gets and sends every trained parameter (C d for a head without bias), four bytes each;
    headers are left out.
    """
    return _DIRECTIONS * BYTES_PER_NUMBER * num_rounds * clients_per_round * num_parameters


def mezo_bytes(num_rounds: int, clients_per_round: int, num_directions: int) -> int:
    """Count the bytes of FedMeZO by the thesis: R (K + 2 K P), one byte for the seed and for every scalar each way.

    No implementation has one-byte scalars; the rounds have the bytes as sent. Source: Bernier's thesis, equation 6,
    whose table 4.1 is this with P = 1.
    """
    return num_rounds * clients_per_round * (1 + _DIRECTIONS * num_directions)


@dataclass(frozen=True)
class RoundRecord:
    """One round of one training: one line of rounds.jsonl.

    A round is one aggregation. Bytes and forward passes are those of this round alone, of all its clients together.

    Attributes
    ----------
    stage : str
        Trained part: `probe` (the head), `full`, `features` (the backbone under a fixed head), ...
    start : str
        Start of the training: a method such as `fedcof`, or `random`.
    round : int
        Absolute, also after the run was resumed; 0 is the start, before any training.
    accuracy, loss : float or None
        Share of test samples classified correctly, 0 to 1, and their mean cross-entropy (natural logarithm); None where
        nothing was evaluated.
    train_loss : float or None
        Mean over the samples of the clients' own losses in their last local epoch.
    num_clients, num_failed : int
        Clients whose updates were averaged, and those that were asked and whose updates were not.
    bytes_up, bytes_down, bytes_catch_up : int
        From and to the clients, and to them besides, for missed rounds or the start (FedMeZO).
    forward_passes : int
        Passes of one sample through the backbone; the backward pass counts as two.
    seconds : float
        Wall-clock time.
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

    @property
    def num_bytes(self) -> int:
        """All bytes of the round."""
        return self.bytes_up + self.bytes_down + self.bytes_catch_up

    def line(self) -> str:
        """Give the line for rounds.jsonl, without its end."""
        return to_json(asdict(self), indent=None)

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Read a line of rounds.jsonl; a loss may be the string `"inf"`, for which JSON has no number.

        Raises
        ------
        ValueError
            If a field is missing or unknown.
        """
        expected = [item.name for item in fields(cls)]
        if set(line) != set(expected):
            raise ValueError(f"a round must have {', '.join(expected)}, got {', '.join(sorted(line))}")
        losses = {name: None if line[name] is None else float(line[name]) for name in ("loss", "train_loss")}
        return cls(**{**line, **losses})


def read_rounds(path: Path) -> list[RoundRecord]:
    """Read a rounds.jsonl.

    A run that was killed between two checkpoints repeats rounds when it is resumed: the later line of a round counts.
    A last line that was cut off by a crash is left out, with a warning in the log.

    Returns
    -------
    list of RoundRecord
        By training, in the order in which they began, and by round; none where there is no file.

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


@dataclass(frozen=True)
class TrainingResult:
    """A whole training: an entry under `training` in results.json, one row of the table, one curve.

    Attributes
    ----------
    name : str
        Such as `fedcof-probe`; its head file has this name.
    stage, start : str
        As in every one of its rounds.
    rounds : sequence of RoundRecord
        In ascending order, at least one; round 0, where it is there, is the start.
    stopped : str
        Why it ended: `rounds done`, or which plateau.
    start_bytes, start_forward_passes : int
        Cost of the start itself: bytes up and down of all clients in the closed-form stage, and forward passes; 0 for a
        random head.
    formula_bytes, thesis_forward_passes : int
        Cost of the training by the papers' formula (:func:`training_bytes`) and the thesis's (:func:`forward_passes`).
    notes : sequence of str
        Anything a reader should know.
    display_name : str
        The stage in a heading.
    learning_rate : float or None
        Of the clients' SGD; None if there is none.
    start_temperature : float
        By which the start's logits were divided before the first round.
    quality : mapping
        What :func:`fedstats_app.report.method_result.quality` says of the head in the end; empty if only its
        accuracy is known.
    calibration : Calibration or None
        Of that head, on the samples that scored it.
    client_accuracy : dict or None
        How that head's accuracy differs between clients, if they evaluated it by class.
    kept_round : int or None
        The round whose model was kept, if another than the last.
    """

    name: str
    stage: str
    start: str
    rounds: Sequence[RoundRecord]
    stopped: str = "rounds done"
    start_bytes: int = 0
    start_forward_passes: int = 0
    formula_bytes: int = 0
    thesis_forward_passes: int = 0
    notes: Sequence[str] = field(default_factory=list)
    display_name: str = ""
    learning_rate: float | None = None
    start_temperature: float = 1.0
    quality: Mapping[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
    client_accuracy: dict[str, Any] | None = None
    kept_round: int | None = None

    def __post_init__(self) -> None:
        """Refuse a training without rounds."""
        if not self.rounds:
            raise ValueError(f"{self.name}: a training must have at least one round, or the start as round 0, got none")

    @property
    def start_accuracy(self) -> float | None:
        """Accuracy before any training; None where it was not evaluated."""
        return self.rounds[0].accuracy if self.rounds[0].round == 0 else None

    @property
    def final_accuracy(self) -> float | None:
        """Accuracy of the model that was kept: after the last round that was evaluated, or after the one chosen."""
        if self.kept_round is not None:
            return next((record.accuracy for record in self.rounds if record.round == self.kept_round), None)
        return next((record.accuracy for record in reversed(self.rounds) if record.accuracy is not None), None)

    @property
    def head_round(self) -> int:
        """Absolute number of the round whose model was kept."""
        return self.num_rounds if self.kept_round is None else self.kept_round

    @property
    def best_accuracy(self) -> float | None:
        """The highest accuracy after any round, the start included."""
        return max((record.accuracy for record in self.rounds if record.accuracy is not None), default=None)

    @property
    def best_round(self) -> int | None:
        """The first round after which the accuracy was the best."""
        scored = (record for record in self.rounds if record.accuracy is not None)
        return next((record.round for record in scored if record.accuracy == self.best_accuracy), None)

    @property
    def num_rounds(self) -> int:
        """Absolute number of the last round."""
        return self.rounds[-1].round

    @property
    def seconds(self) -> float:
        """Wall-clock time of all rounds, without the start."""
        return sum(record.seconds for record in self.rounds)

    def cumulative_bytes(self) -> list[int]:
        """Bytes up and down until after each round, the start's included."""
        costs = (record.num_bytes for record in self.rounds)
        return [self.start_bytes + total for total in itertools.accumulate(costs)]

    def cumulative_forward_passes(self) -> list[int]:
        """Forward passes until after each round, the start's included."""
        costs = (record.forward_passes for record in self.rounds)
        return [self.start_forward_passes + total for total in itertools.accumulate(costs)]

    def to_json(self) -> dict[str, object]:
        """Give the entry for results.json, without name (its key there) and rounds; `accuracy` is the final one."""
        apart = ("name", "rounds", "quality")
        kept = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in apart}
        return {
            **self.quality,
            "accuracy": self.final_accuracy,
            "start_accuracy": self.start_accuracy,
            "best_accuracy": self.best_accuracy,
            "best_round": self.best_round,
            "num_rounds": self.num_rounds,
            "bytes": self.cumulative_bytes()[-1],
            "forward_passes": self.cumulative_forward_passes()[-1],
            "seconds": self.seconds,
            **kept,
            "calibration": None if self.calibration is None else asdict(self.calibration),
        }

    @classmethod
    def from_json(cls, name: str, entry: Mapping[str, Any], rounds: Iterable[RoundRecord]) -> Self:
        """Put together what `to_json` gave under a name and, of all rounds of the run, those of its stage and start.

        Raises
        ------
        ValueError
            If the entry lacks a field or there is no round.
        """
        own = [record for record in rounds if (record.stage, record.start) == (entry.get("stage"), entry.get("start"))]
        fitted = entry.get("calibration")
        measured = {key: value for key, value in entry.items() if key in UNSCORED and key != "accuracy"}
        derived = {"quality": measured, "calibration": fitted and Calibration(**fitted), "name": name, "rounds": own}
        entry = {**entry, **derived}
        missing = [item.name for item in fields(cls) if item.name not in entry]
        if missing:
            raise ValueError(f"training {name!r} must have {', '.join(missing)}, got only {', '.join(sorted(entry))}")
        return cls(**{item.name: entry[item.name] for item in fields(cls)})


def decline(result: TrainingResult) -> str:
    """Return a note if the head of a training is less accurate than its start or its best round, else "".

    The note adds that the difference can be chance if the higher accuracy lies in the interval of the final one.
    """
    final, start, best = result.final_accuracy, result.start_accuracy, result.best_accuracy
    if final is None or best is None or best <= final:
        return ""
    better = [f"its start ({100 * start:.2f}%)"] if start is not None and start > final else []
    if result.best_round:
        better.append(f"round {result.best_round} ({100 * best:.2f}%)")
    low, high = result.quality.get("accuracy_interval") or (final, final)
    chance = ", which can be chance" if low <= best <= high else ""
    return f"its accuracy, {100 * final:.2f}%, is below that of {' and of '.join(better)}{chance}"
