"""The presets' published numbers against a list of them that was made from the papers themselves, where it is here."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from research.reproduce.catalogue import Catalogue, Published
from research.reproduce.preset import Row, read_preset

_REPOSITORY = Path(__file__).parents[3]
_FOLDER = _REPOSITORY / "research" / "presets"
_CATALOGUE = Catalogue.read(_FOLDER)
# Names in the list that the presets write out.
_NAMES = {
    **{"FedCOF (Ours)": "FedCOF", "FedCOF Oracle": "FedCOF oracle", "Local-only": "Local", "Random": "from scratch"},
    **{"IN-R": "ImageNet-R", "CUB200": "CUB-200", "iNat-120K": "iNaturalist-Users-120K"},
    **{"iNat": "iNaturalist-Users-120K", "mu": "means", "Sigma": "covariance", "compute F": "forward_passes"},
    **{"random head": "FedAdam, random head", "FedCOF head": "FedAdam, FedCOF head"},
    **{"PACS P": "photo", "PACS A": "art painting", "PACS C": "cartoon", "PACS S": "sketch"},
    **{"Office-Home P": "Product", "Office-Home A": "Art", "Office-Home C": "Clipart", "Office-Home R": "Real World"},
}


def _named(name: str) -> str:
    return ", ".join(_NAMES.get(part, part) for part in name.replace("+FedAdam", " + FedAdam").split(", "))


@pytest.fixture(scope="module")
def tables() -> Mapping[str, Any]:
    path = Path(os.environ.get("FEDSTATS_SHARED", _REPOSITORY.parent / "shared")) / "seeds" / "published.json"
    if not path.is_file():
        pytest.skip(f"no {path}: FEDSTATS_SHARED names the folder that has seeds/published.json")
    tables: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return tables


def rows_of(*names: str) -> dict[str, Row]:
    return {row.name: row for name in names for row in read_preset(_FOLDER / f"{name}.toml", _CATALOGUE).rows}


def of_list(table: Mapping[str, Any], measures: tuple[str, ...]) -> Iterator[tuple[str, str, str, Published]]:
    """Yield row, column, measure and number; an entry is a number, [number, spread] or [number, spread, MB]."""
    for row, cells in table.items():
        for column, entry in cells.items():
            number, *rest = entry if isinstance(entry, list) else [entry]
            yield _named(row), _named(column), measures[0], Published(number, *rest[:1])
            if rest[1:]:
                yield _named(row), _named(column), measures[1], Published(rest[1])


# Beginnings of the list's titles, with the presets and measures.
SIMPLE = {
    "fedcof tables 3 and 9": (("fedcof-table-3",), ("accuracy", "uplink_bytes")),
    "fedcof table 4": (("fedcof-table-4",), ("accuracy", "uplink_bytes")),
    "fedcof tables 5 and 10": (("fedcof-table-5",), ("accuracy",)),
    "fedcgs tables 2 and 6": (("fedcgs-table-2-pacs", "fedcgs-table-2-office-home"), ("accuracy",)),
    "fedcgs table 3": (("fedcgs-table-3",), ("accuracy_mean",)),
}


@pytest.mark.parametrize("title", SIMPLE)
def test_numbers_and_spreads_are_the_papers(title: str, tables: Mapping[str, Any]) -> None:
    presets, measures = SIMPLE[title]
    rows = rows_of(*presets)
    (table,) = (table for name, table in tables.items() if name.startswith(title))
    found = [one for one in of_list(table, measures) if "Avg." not in one[0]]
    assert len(found) >= 4
    for row, column, measure, number in found:
        ours = rows[row].published[measure][column]
        assert ours.value == number.value and (ours.spread or 0) == (number.spread or 0), (title, row, column)


def test_numbers_of_sweeps_are_the_papers(tables: Mapping[str, Any]) -> None:
    rows = rows_of("fedcgs-table-1")
    for name, cells in tables["fedcgs table 1"].items():
        published = rows[name.replace("alpha", "dirichlet-alpha")].published["accuracy"]
        assert published == {column: Published(*number) for column, number in cells.items()}, name
    rows = rows_of("fedcgs-tables-4-7-8")
    (table,) = (table for name, table in tables.items() if name.startswith("fedcgs tables 4, 7, 8"))
    for name, by_clients in table.items():
        data, _, alpha = name.partition(", alpha ")
        for clients, cells in by_clients.items():
            row = rows[f"{data}, num-clients {clients.removeprefix('M=')}, dirichlet-alpha {alpha}"]
            wanted = {_named(column): Published(number) for column, number in cells.items() if column != "accuracy"}
            assert row.published == {"error": wanted, "accuracy": {"FedCGS": Published(cells["accuracy"])}}, row.name
    rows = rows_of("fedcof-table-15")
    (table,) = (table for name, table in tables.items() if name.startswith("fedcof table 15"))
    for means, by_data in table.items():
        for data, numbers in by_data.items():
            for alpha, number in zip((0.5, 0.1, 0.05, 0.01), numbers, strict=True):
                column = "1 mean" if means == "1" else f"{means} means"
                found = rows[f"{data}, dirichlet-alpha {alpha}"].published["accuracy"][column]
                assert found == Published(number), (data, alpha)


def test_probing_the_thesis_and_the_reviews(tables: Mapping[str, Any]) -> None:
    rows = rows_of("fedcof-table-11")
    (table,) = (table for name, table in tables.items() if name.startswith("fedcof table 11"))
    for data, number in table.items():
        assert rows[_named(data)].published["accuracy"] == {"Fed-LP": Published(*number)}
    rows = rows_of("thesis-table-3-2")
    for data, cells in tables["thesis table 3.2, 3 seeds"].items():
        for column, entry in cells.items():
            published = rows[data].published
            assert published["accuracy"][_named(column)] == Published(entry["accuracy"], entry["spread"])
            if column != "FedNCM":  # in the notes
                assert published["bytes"][_named(column)].value == pytest.approx(1000 * entry["GB"])
                assert published["forward_passes"][_named(column)].value == pytest.approx(entry["compute F"])
    reviews = read_preset(_FOLDER / "fedcof-reviews-sets.toml", _CATALOGUE)
    rows = {row.name: row for row in reviews.rows}
    (table,) = (table for name, table in tables.items() if name.startswith("reviews"))
    for data, curves in table.items():
        for column, (*earlier, last) in curves.items():
            name = "FedAdam, from scratch" if column == "from scratch" else _named(column)
            assert rows[data].published["accuracy"][name] == Published(last)
            assert ", ".join(f"{number:g}" for number in earlier) in reviews.notes
