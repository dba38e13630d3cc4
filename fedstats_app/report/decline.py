"""Whether a training left a head that is worse than one it had before."""

from __future__ import annotations

from fedstats_app.report.training_record import TrainingResult


def decline(result: TrainingResult) -> str:
    """Return in words that the head of a training is less accurate than its start or its best round, "" if it is not.

    That the difference can be chance is said where the higher accuracy lies in the interval of the final one.
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
