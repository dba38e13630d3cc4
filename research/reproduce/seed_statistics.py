"""Mean and standard deviation over run folders that differ in their seed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedstats_app.methods import display_name
from fedstats_app.report.training_record import RANDOM_START, TrainingResult, read_rounds
from research.reproduce.outcome import mean_and_deviation
from research.reproduce.table import pipe_table

Scores = dict[str, dict[str, dict[str, Any]]]


class _Column(NamedTuple):
    field: str
    factor: float
    digits: int


_ACCURACY_COLUMNS = {"accuracy (%)": _Column("accuracy", 100.0, 2)}
# "to random": the cost until the accuracy with which the random head ended.
_TRAINING_COLUMNS = {
    "start (%)": _Column("start_accuracy", 100.0, 2),
    "final (%)": _Column("accuracy", 100.0, 2),
    "best (%)": _Column("best_accuracy", 100.0, 2),
    "rounds to random": _Column("rounds_to_random_head", 1.0, 1),
    "MB to random": _Column("bytes_to_random_head", 1e-6, 2),
    "passes to random": _Column("forward_passes_to_random_head", 1.0, 0),
    "seconds": _Column("seconds", 1.0, 0),
}


def aggregate(folders: Sequence[Path]) -> Scores:
    """Aggregate the runs of one experiment.

    Parameters
    ----------
    folders : sequence of Path
        Run folders, one per seed, of the same methods and trainings.

    Returns
    -------
    dict
        From each mapping of results.json that has accuracies (`methods`, `training`, ...) to its entries, to their
        numbers, each with `mean`, `std` (with n - 1) and `values`, in the runs' own units.

    Raises
    ------
    ValueError
        If there is no folder, or the runs do not have the same methods and trainings.
    """
    if not folders:
        raise ValueError("aggregate: there must be at least one run folder, got none")
    results = [json.loads((folder / "results.json").read_text(encoding="utf-8")) for folder in folders]
    trainings = [read_trainings(folder) for folder in folders]
    sections: Scores = {}
    for name in results[0]:
        if any(_has_accuracies(result.get(name)) for result in results):
            sections[name] = _summaries(name, [result.get(name) or {} for result in results])
    for name, summary in _summaries("training", [_to_random_heads(seed) for seed in trainings]).items():
        sections["training"][name].update(summary)
    return sections


def read_trainings(folder: Path) -> list[TrainingResult]:
    """Read the trainings of a run folder, with their rounds."""
    entries = json.loads((folder / "results.json").read_text(encoding="utf-8")).get("training", {})
    rounds = read_rounds(folder / "rounds.jsonl")
    return [TrainingResult.from_json(name, entry, rounds) for name, entry in entries.items()]


def markdown(aggregated: Mapping[str, Scores]) -> str:
    """Lay out the accuracies of all experiments, and what trainings took to get as far as a random head did.

    Parameters
    ----------
    aggregated : mapping
        From each experiment's name to what `aggregate` gave.

    Returns
    -------
    str
        Markdown tables, one per experiment and section.
    """
    blocks = []
    for experiment, found in aggregated.items():
        blocks.append(f"## {experiment}")
        for section, entries in found.items():
            columns = _TRAINING_COLUMNS if section == "training" else _ACCURACY_COLUMNS
            rows = [
                [display_name(name), *(_mean_and_std(entry.get(column.field), column) for column in columns.values())]
                for name, entry in entries.items()
            ]
            blocks.append(pipe_table([section, *columns], rows))
    return "\n\n".join(blocks) + "\n"


def _has_accuracies(value: object) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(entry, dict) and "accuracy" in entry for entry in value.values())
    )


def _summaries(section: str, seeds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """From every entry to its numbers over the seeds; a value that a seed lacks (null) leaves no mean."""
    names = [set(seed) for seed in seeds]
    if any(entry != names[0] for entry in names):
        raise ValueError(f"{section}: every seed must have the same entries, got {[sorted(entry) for entry in names]}")
    return {name: _numbers([seed[name] for seed in seeds]) for name in seeds[0]}


def _numbers(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for key in entries[0]:
        values = [entry.get(key) for entry in entries]
        given = [value for value in values if value is not None]
        if not given or any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in given):
            continue
        mean, std = mean_and_deviation(given) if len(given) == len(values) else (None, None)
        summary[key] = {"mean": mean, "std": std, "values": values}
    return summary


def _to_random_heads(trainings: Sequence[TrainingResult]) -> dict[str, dict[str, int | None]]:
    """Map every training to its costs until it reached the final accuracy of its stage's random head."""
    costs: dict[str, dict[str, int | None]] = {}
    for training in trainings:
        same = (other for other in trainings if (other.start, other.stage) == (RANDOM_START, training.stage))
        target = next((other.final_accuracy for other in same), None)
        costs[training.name] = {} if target is None else _costs_to(target, training)
    return costs


def _costs_to(accuracy: float, training: TrainingResult) -> dict[str, int | None]:
    """Return rounds, bytes and forward passes until an accuracy was reached; None if it never was."""
    columns = (
        [result.round for result in training.rounds],
        training.cumulative_bytes(),
        training.cumulative_forward_passes(),
    )
    reached = [result.accuracy is not None and result.accuracy >= accuracy for result in training.rounds]
    costs = (next(itertools.compress(column, reached), None) for column in columns)
    names = (f"{cost}_to_random_head" for cost in ("rounds", "bytes", "forward_passes"))
    return dict(zip(names, costs, strict=True))


def _mean_and_std(number: Mapping[str, Any] | None, column: _Column) -> str:
    if number is None:
        return "-"
    values = [value for value in number["values"] if value is not None]
    if number["mean"] is None:
        return f"in {len(values)} of {len(number['values'])} seeds"
    mean, std = (f"{column.factor * number[key]:,.{column.digits}f}" for key in ("mean", "std"))
    return f"{mean} ± {std}" if len(values) > 1 else mean
