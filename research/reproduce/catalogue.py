"""Common parts of presets: papers, data sets, published numbers, and the reasons why ours may differ from them."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

FILE = "catalogue.toml"


class PresetError(ValueError):
    """A preset, or a change of it, is invalid; the message says why."""


@dataclass(frozen=True)
class Measure:
    """A number of a run's results that papers publish.

    Attributes
    ----------
    title, unit : str
        In headings.
    factor : float
        From the unit of results.json to this one.
    digits : int
        After the point; -1 for powers of ten.
    entry : str
        Its name in results.json; "" for the measure's own.
    per : tuple of str
        Divided by these: "clients", "classes", "dimension" (of the features).
    """

    title: str
    unit: str
    factor: float
    digits: int
    entry: str = ""
    per: tuple[str, ...] = ()

    def text(self, number: float, *, sign: bool = False) -> str:
        """Write a number in this unit; with a plus where it is a difference."""
        digits = "1e" if self.digits < 0 else f"{self.digits}f"
        return f"{number:{'+' if sign else ''}.{digits}}"

    @property
    def heading(self) -> str:
        """The title, in capitals where a sentence has them, and the unit."""
        return self.title[0].upper() + self.title[1:] + (f" ({self.unit})" if self.unit else "")


_NUMBER_BYTES = 4
MEASURES = {
    "accuracy": Measure("accuracy", "%", 100.0, 2),
    "start_accuracy": Measure("accuracy before training", "%", 100.0, 2),
    "accuracy_mean": Measure("mean accuracy of the clients", "%", 100.0, 2),
    "uplink_bytes": Measure("sent by all clients, by the paper's formula", "MB", 1e-6, 2),
    "wire_bytes": Measure("sent by all clients, as sent", "MB", 1e-6, 2),
    "bytes": Measure("sent and received in training", "MB", 1e-6, 2),
    "forward_passes": Measure("forward passes of a sample", "", 1.0, -1, entry="thesis_forward_passes"),
    # Of the simulation statistics-error: merged statistics against those of all samples in one place.
    "error": Measure("Frobenius norm of the error", "", 1.0, -1, entry="norm"),
    # Both follow from the paper's formula of FedNCM and FedCOF, M d numbers, and of FedCGS.
    "means_per_class": Measure(
        "means of a class", "", 1 / _NUMBER_BYTES, 2, entry="uplink_bytes", per=("classes", "dimension")
    ),
    "numbers_per_client": Measure(
        "numbers that a client sends", "", 1 / _NUMBER_BYTES, 0, entry="uplink_bytes", per=("clients",)
    ),
}


@dataclass(frozen=True)
class Deviation:
    """A reason why a number may differ from the published one.

    Attributes
    ----------
    text : str
        A sentence.
    measures : tuple of str
        The measures that it touches; empty for all.
    """

    text: str
    measures: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """A data set of the papers.

    Attributes
    ----------
    title : str
        As papers call it.
    keys : mapping
        Run-config keys that read it, `dataset` among them.
    local : str
        Layout of a local copy, in one sentence.
    train, test, all : int
        Samples, and both together; 0 where the papers do not say.
    """

    title: str
    keys: Mapping[str, Any]
    local: str
    train: int = 0
    test: int = 0
    all: int = 0


State = Literal["exact", "deviates"]


@dataclass(frozen=True)
class Place:
    """Entry of a paper, and where it is here.

    Attributes
    ----------
    paper, name : str
        The paper by its name in the catalogue; its tables and figures by number, or a system.
    state : {"exact", "deviates"}
        The same as far as the paper tells, or another in something that is named.
    presets : tuple of str
        That run it.
    command, page : str
        Of a benchmark or of a preset's sweep, and of the repository, that have it.
    why : str
        In what it deviates, where no preset says so.

    Raises
    ------
    ValueError
        If it is nowhere, or in another state.
    """

    paper: str
    name: str
    state: State
    presets: tuple[str, ...] = ()
    command: str = ""
    page: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "presets", tuple(self.presets))
        if self.state not in get_args(State) or not (self.presets or self.command or self.page):
            raise ValueError(f"{self.paper}, {self.name}: needs presets, command or page, and one of {get_args(State)}")


@dataclass(frozen=True)
class Catalogue:
    """Papers, data sets and deviations by the names that presets have for them.

    Attributes
    ----------
    papers, data, deviations : mapping
        By name.
    places : tuple of Place
        All that the papers have.
    """

    papers: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, DataSet] = field(default_factory=dict)
    deviations: Mapping[str, Deviation] = field(default_factory=dict)
    places: tuple[Place, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Catalogue:
        """Read ``catalogue.toml`` of a folder of presets.

        Raises
        ------
        PresetError
            If there is none, or an entry has not the fields that it must have.
        """
        content = read_toml(folder / FILE)
        owner = str(folder / FILE)
        check_fields(content, {"papers", "data", "deviations", "places"}, owner)
        try:
            return cls(
                papers=content["papers"],
                places=tuple(
                    Place(paper, name, **entry)
                    for paper, entries in content.get("places", {}).items()
                    for name, entry in entries.items()
                ),
                data={name: DataSet(**entry) for name, entry in content["data"].items()},
                deviations={
                    name: Deviation(entry["text"], tuple(entry.get("measures", ())))
                    for name, entry in content["deviations"].items()
                },
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PresetError(f"{owner}: {error}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    PresetError
        If it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PresetError(f"{path} cannot be read: {error}") from error


def check_fields(table: Mapping[str, Any], allowed: Collection[str], owner: str) -> None:
    """Refuse a table with a field that there is not."""
    if wrong := sorted(set(table) - set(allowed)):
        raise PresetError(f"{owner}: no such field: {', '.join(wrong)}; there are {', '.join(sorted(allowed))}")


@dataclass(frozen=True)
class Published:
    """A number of a paper's table; `spread` is what stands after its ±, None where nothing does."""

    value: float
    spread: float | None = None

    def __str__(self) -> str:
        """All digits, as the table prints them."""
        return " ± ".join(f"{number:.10g}" for number in (self.value, self.spread) if number is not None)


def read_published(given: Any, index: int, number: int, owner: str) -> Published:
    """Return the published number at a point of a sweep.

    Parameters
    ----------
    given : object
        As in the file: a number, ``"41.5 ± 0.1"``, or a list with one of these for each point.
    index, number : int
        Which point, and how many there are.
    owner : str
        For the error.

    Raises
    ------
    PresetError
        If it is none of these.
    """
    values = given if isinstance(given, list) else [given]
    try:
        if len(values) != number or any(isinstance(value, bool) for value in values):
            raise ValueError
        # A file's order is checked as a whole: a wrong number at another point is refused here, too.
        read = [tuple(map(float, str(value).split(" ± "))) for value in values]
        return [Published(*entry) for entry in read][index]
    except (ValueError, TypeError):
        raise PresetError(
            f"{owner}: published: must be {number} number(s), one for each value swept over, each such as 41.5 or "
            f'"41.5 ± 0.1", got {given}'
        ) from None
