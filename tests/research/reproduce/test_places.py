"""Every table and figure of the papers has its line in the catalogue, and what a line names is there and runs."""

import importlib
import os
import re
import shlex
from pathlib import Path

import pytest

from research.benchmarks.features import config_of
from research.reproduce.catalogue import Catalogue, Place
from research.reproduce.command import main
from research.reproduce.preset import preset_names, read_preset

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "research" / "presets"
CATALOGUE = Catalogue.read(FOLDER)
# The last of each kind; A.1 and so on are counted apart. The thesis counts by chapter.
NUMBERS = {
    "fedcof": {"table": [str(n) for n in range(1, 17)], "figure": [str(n) for n in range(1, 10)]},
    "fedcgs": {"table": [str(n) for n in range(1, 9)], "figure": [str(n) for n in range(1, 5)]},
    "thesis": {
        "table": ["3.1", "3.2", "3.3", "4.1", "4.2", *(f"A.{n}" for n in range(1, 6))],
        "figure": [*(f"3.{n}" for n in range(1, 11)), "4.1", "4.2", "4.3", "A.1"],
    },
}
SYSTEMS = {
    "fedcof": ("FedNCM", "Fed3R", "FedCOF", "CCVR", "FedAvg", "FedAdam", "Fed-LP", "FedAvg-PT", "FedProx-PT", "PFPT"),
    "fedcgs": ("FedCGS", "FedAvg", "ensemble", "DENSE", "Co-Boosting", "FedPFT", "Local", "FedAvg-FT", "FedProto"),
    "thesis": ("FedMeZO", "DistMeZO", "SLoRA", "LP then FT", "MLP head"),
}
TITLES = {"fedcof": "Covariances for Free", "fedcgs": "Capture Global Feature", "thesis": "Fine-Tuning Strategies"}


def numbered(paper: str, kind: str) -> set[str]:
    """Return the numbers of the tables or figures that the catalogue has lines for."""
    found: set[str] = set()
    for place in (one for one in CATALOGUE.places if one.paper == paper):
        for match in re.finditer(rf"\b{kind}s? (.*?)(?=\b(?:table|figure|section)s?\b|$)", place.name):
            found |= set(re.findall(r"\b(?:[A-Z]\.)?\d+(?:\.\d+)?\b", match[1]))
    return found


@pytest.mark.parametrize("paper", NUMBERS)
def test_every_table_figure_and_system_has_a_line(paper: str) -> None:
    for kind, numbers in NUMBERS[paper].items():
        assert numbered(paper, kind) == set(numbers), kind
    names = " ".join(one.name for one in CATALOGUE.places if one.paper == paper)
    assert {system for system in SYSTEMS[paper] if system not in names} == set()


@pytest.mark.parametrize("paper", NUMBERS)
def test_no_caption_of_the_papers_is_without_a_line(paper: str) -> None:
    folder = Path(os.environ.get("FEDSTATS_SHARED", REPOSITORY.parent / "shared")) / "seeds"
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("00[2-4]*.txt"))]
    if not texts:
        pytest.skip(f"no {folder}: FEDSTATS_SHARED names the folder that has seeds/ with the papers' texts")
    (text,) = [one for one in texts if TITLES[paper] in one[:5000]]
    for kind in ("Table", "Figure"):
        captions = set(re.findall(rf"^{kind} ((?:[A-Z]\.)?\d+(?:\.\d+)?)[:.]? ", text, re.MULTILINE))
        assert len(captions) >= 4 and captions <= numbered(paper, kind.lower()), kind


def test_all_presets_have_a_line_and_states_are_theirs() -> None:
    assert {name for place in CATALOGUE.places for name in place.presets} == set(preset_names(FOLDER))
    for place in CATALOGUE.places:
        presets = [read_preset(FOLDER / f"{name}.toml", CATALOGUE) for name in place.presets]
        reasons = [
            reason
            for preset in presets
            for row in preset.rows
            for column in preset.columns
            for measure in preset.measures
            for reason in (*preset.reasons(measure, row, column, CATALOGUE), column.quoted)
        ]
        told = bool(place.why) or any(reasons)
        assert told == (place.state != "exact"), f"{place.paper}, {place.name}: {place.state}, {place.why}"


@pytest.mark.parametrize("place", [one for one in CATALOGUE.places if one.page], ids=lambda one: one.name)
def test_pages_have_what_they_are_named_for(place: Place) -> None:
    page = (REPOSITORY / place.page).read_text(encoding="utf-8")
    named = place.name.split(",")[0]
    assert re.match("tables? |figures? ", named) or named.split()[0] in page


@pytest.mark.parametrize("place", [one for one in CATALOGUE.places if one.command], ids=lambda one: one.name)
def test_commands_are_right(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    python, _, module, *words = shlex.split(place.command)
    assert python == "python"
    if module == "research.reproduce":
        assert main([*words, "--dry-run"]) == 0 and capsys.readouterr().out
        return
    with pytest.raises(SystemExit) as ended:  # after --help
        importlib.import_module(module).main(["--help"])
    described = capsys.readouterr().out
    assert ended.value.code == 0
    assert {word for word in words if word.startswith("--") and f"{word} " not in described} == set()
    assert all(config_of(word).data.dataset in word for word in words if "=" in word)  # raises where a setting is wrong
