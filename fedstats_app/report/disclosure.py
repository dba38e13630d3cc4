"""What left the sites, for their privacy officers: `disclosure.jsonl`, and the sum of it in results.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedstats_app.grid.client_outcome import ClientOutcome
from fedstats_app.storage.files import append_lines, to_json

DISCLOSURE_FILE = "disclosure.jsonl"


def append_disclosure(
    folder: Path, entries: Sequence[Mapping[str, object]], *, run_id: str, methods: Sequence[str]
) -> None:
    """Add one line per client and kind of message to disclosure.jsonl; what earlier runs wrote there stays.

    Parameters
    ----------
    folder : Path
        A run folder.
    entries : sequence of mapping
        As a `DisclosureLedger` has them.
    run_id : str
        Of the run in which they left.
    methods : sequence of str
        For which statistics were asked.
    """
    context = {"run": run_id, "methods": list(methods)}
    append_lines(folder / DISCLOSURE_FILE, [to_json({**context, **entry}, indent=None) for entry in entries])


def policy_record(outcomes: Sequence[ClientOutcome], any_app: Sequence[int] = ()) -> dict[str, int | list[str]]:
    """Return what nodes' policies did in a run, in numbers of clients, and where there was none.

    Parameters
    ----------
    outcomes : sequence of ClientOutcome
        Of all clients asked.
    any_app : sequence of int
        Nodes that run any app; not mentioned if there are none.
    """
    unprotected = {"nodes_running_any_app": [str(node) for node in any_app]} if any_app else {}
    return {
        "num_refused": sum(outcome.outcome == "refused" for outcome in outcomes),
        "num_with_suppressed_classes": sum(outcome.num_suppressed_classes > 0 for outcome in outcomes),
        "num_warned": sum(bool(outcome.warning) for outcome in outcomes),
        **unprotected,
    }
