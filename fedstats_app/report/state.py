"""State passed between the stages of a run, in memory or loaded from the run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedstats_app.base.files import read_json_file, read_json_lines, refusing_others
from fedstats_app.heads import LinearHead
from fedstats_app.report.head_file import read_head


class Phases:
    """Seconds by phase; each begins where the one before ended, the first at second 0 of the clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._begun = 0.0

    def end(self, phase: str) -> None:
        """End a phase, which began where the one before it ended."""
        now = self._clock()
        self.seconds[phase] = round(now - self._begun, 3)
        self._begun = now


@dataclass(frozen=True)
class SolvedHead:
    """A head of a run folder, with its entries of results.json.

    Attributes
    ----------
    head : LinearHead
        As its file has it.
    accuracy : float or None
        None where nothing was evaluated.
    wire_bytes : int
        That all clients sent for it.
    probe_step : float or None
        As :class:`fedstats_app.report.method_result.MethodResult` has it, of the features that it takes; None if
        unknown.
    """

    head: LinearHead
    accuracy: float | None = None
    wire_bytes: int = 0
    probe_step: float | None = None


@dataclass(frozen=True)
class State:
    """Result of the closed-form stage; empty before it.

    Attributes
    ----------
    heads : mapping
        From method to its head.
    clients : mapping
        From every client that is in the heads to its number of samples.
    client_accuracies : mapping
        From method to its head's accuracy on what each client holds out, by client; empty where the server evaluated.
    """

    heads: Mapping[str, SolvedHead] = field(default_factory=dict)
    clients: Mapping[int, int] = field(default_factory=dict)
    client_accuracies: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


def read_state(folder: Path) -> State:
    """Read the result of the first stage from a run folder.

    Raises
    ------
    ValueError, FileNotFoundError
        If its files are damaged or do not belong together.
    """
    record = read_json_file(folder / "results.json")
    with refusing_others(folder, "the results of a first stage"):
        heads = {}
        for name, result in record["methods"].items():
            head, _ = read_head(folder / "heads" / f"{name}.safetensors")
            sent, step = int(result["wire_bytes"]), result["probe_step"]
            heads[name] = SolvedHead(head, result["accuracy"], sent, step)
        outcomes = read_json_lines(folder / "clients.jsonl")
        in_heads = [outcome for outcome in outcomes if outcome["outcome"] in ("merged", "known")]
        clients = {int(outcome["client"]): int(outcome["num_examples"]) for outcome in in_heads}
        accuracies = {
            name: {int(client): accuracy for client, accuracy in result["client_accuracy"]["by_client"].items()}
            for name, result in record["methods"].items()
            if result.get("client_accuracy")
        }
        return State(heads, clients, accuracies)


def best_head(
    accuracies: Mapping[str, float], by_client: Mapping[str, Mapping[int, float]], weights: Mapping[int, int]
) -> str:
    """Return the most accurate head, or if one client alone decides which that is, the best without that client.

    Where leaving out some client would make another head the best, the one is left out that says most for or against.
    A client can only decide by saying more than all others together.

    Parameters
    ----------
    accuracies : mapping
        By head, of all samples; at least one.
    by_client : mapping
        By head and client; empty where the server evaluated.
    weights : mapping
        From client to the samples in its statistics, which it cannot choose any more when it evaluates.
    """
    best = max(accuracies, key=accuracies.__getitem__)
    clients = sorted(set().union(*by_client.values()))
    if len(clients) < 3:  # of two, one would always decide
        return best
    correct = {
        name: {client: weights.get(client, 0) * by_client.get(name, {}).get(client, 0.0) for client in clients}
        for name in accuracies
    }

    def winner(left_out: int) -> str:
        return max([best, *accuracies], key=lambda name: sum(correct[name].values()) - correct[name][left_out])

    def says(client: int) -> float:
        return max(abs(counts[client] - correct[best][client]) for counts in correct.values())

    return best if all(winner(client) == best for client in clients) else winner(max(clients, key=says))
