"""One view of a run folder, for its page and commands; a damaged file is an error."""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedstats_app.base.files import read_json_file, read_json_lines
from fedstats_app.base.lock import is_running
from fedstats_app.methods import method_order
from fedstats_app.report.head_file import head_files, read_head
from fedstats_app.report.method_result import head_to_take, measure_of
from fedstats_app.report.run_folder import DISCLOSURE_FILE
from fedstats_app.report.training_record import TrainingResult, read_rounds


@dataclass(frozen=True)
class RunRecord:
    """The files of one run folder.

    Attributes
    ----------
    name : str
        The folder's, without those that it lies in.
    status, config, results : mapping
        Of status.json, config.json and results.json; empty where the run did not come so far.
    clients, disclosure : sequence of mapping
        The lines of clients.jsonl and disclosure.jsonl.
    trainings : sequence of TrainingResult
        Of stage 2.
    path : Path
        Where its files lie; no page says it.
    heads : mapping
        From every head to its metadata.
    """

    name: str
    status: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    clients: Sequence[Mapping[str, Any]] = ()
    disclosure: Sequence[Mapping[str, Any]] = ()
    trainings: Sequence[TrainingResult] = ()
    path: Path = Path()
    heads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Read a run folder.

        Raises
        ------
        FileNotFoundError
            If it is none: there is no status.json.
        ValueError
            If a file in it is damaged.
        """
        folder = folder.resolve()
        if not (folder / "status.json").is_file():
            raise FileNotFoundError(f"{folder} is no run folder: it has no status.json")
        results = _entries(folder / "results.json")
        rounds = read_rounds(folder / "rounds.jsonl")
        trained = results.get("training", {}).items()
        return cls(
            name=folder.name,
            status=_status(folder / "status.json"),
            config=_entries(folder / "config.json"),
            results=results,
            clients=_lines(folder / "clients.jsonl"),
            disclosure=_lines(folder / DISCLOSURE_FILE),
            trainings=[TrainingResult.from_json(name, entry, rounds) for name, entry in trained],
            path=folder,
            heads={path.stem: read_head(path)[1] for path in head_files(folder)},
        )

    @property
    def kind(self) -> str:
        """Modality of the samples: "image" or "text"."""
        return next((metadata.get("sample-kind", "image") for metadata in self.heads.values()), "image")

    @property
    def is_simulation(self) -> bool:
        """Return whether the sites were parts of one data set on one machine."""
        return bool(self.config.get("simulated"))

    @property
    def class_names(self) -> Sequence[str]:
        """In the order of their ids."""
        names: Sequence[str] = self.config.get("class_names", [])
        return names

    @property
    def methods(self) -> Mapping[str, Mapping[str, Any]]:
        """Entries of results.json about closed-form heads, in the order of the tables."""
        found: Mapping[str, Mapping[str, Any]] = self.results.get("methods", {})
        return {name: found[name] for name in sorted(found, key=method_order)}

    @property
    def all_heads(self) -> Mapping[str, Mapping[str, Any]]:
        """Entries of results.json about all heads, closed-form ones first."""
        made_by = {name: metadata.get("regulariser") for name, metadata in self.heads.items()}
        found = {**self.methods, **self.results.get("training", {})}
        return {name: {"regulariser": made_by.get(name), **entry} for name, entry in found.items()}

    @property
    def taken(self) -> str:
        """The head that `load` takes if none is named; "" if nothing says which."""
        return head_to_take(self.results)

    @property
    def entry(self) -> Mapping[str, Any]:
        """The entry of results.json about that head."""
        return self.all_heads.get(self.taken, {})

    @property
    def is_scored(self) -> bool:
        """Return whether that head has an accuracy, or what stands in its place."""
        return measure_of(self.entry)[1] is not None

    @property
    def targets(self) -> str:
        """Kind of targets, "labels" or "numbers", where a sample has not one class; else ""."""
        return str(self.config.get("targets", ""))

    @property
    def sent(self) -> int:
        """Bytes from all clients for that head; of a trained one up and down, its start's included."""
        return int(self.entry.get("wire_bytes", self.entry.get("bytes", 0)))

    @property
    def num_merged(self) -> int:
        """Clients whose statistics were merged in this run."""
        return int(self.results.get("num_clients_merged", 0))

    def figure(self, name: str) -> str:
        """Return a figure of the run's `plots` as base64 of a PNG; "" where it was not drawn."""
        path = self.path / "plots" / f"{name}.png"
        return base64.b64encode(path.read_bytes()).decode() if path.is_file() else ""

    def site(self, client: object) -> str:
        """Return a client's name: its owner's, or the value of the column that split the data, else its number."""
        return f"site {self._names.get(str(client), client)}"

    @functools.cached_property
    def _names(self) -> Mapping[str, str]:
        names: Mapping[str, str] | Sequence[str] = self.config.get("client_names", {})
        return names if isinstance(names, Mapping) else {str(number): name for number, name in enumerate(names)}

    def class_name(self, index: int) -> str:
        """Return a class's name, or its number where names are not known."""
        return str(self.class_names[index]) if index < len(self.class_names) else str(index)


def _entries(path: Path) -> dict[str, Any]:
    return read_json_file(path) if path.is_file() else {}


def _lines(path: Path) -> list[dict[str, Any]]:
    return read_json_lines(path) if path.is_file() else []


def _status(path: Path) -> dict[str, Any]:
    status = read_json_file(path)
    if status.get("state") == "running" and not is_running(path.parent):
        status |= {"state": "stopped", "reason": "its process was killed"}
    return status
