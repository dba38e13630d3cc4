"""The page on baselines names exactly the published cells that are wrong, and every formula."""

from research.formulas import FORMULAS
from tests.docs.markdown import REPOSITORY, rows
from tests.support.golden import published_costs

PAGE = REPOSITORY / "research" / "baselines.md"


def test_every_wrong_cell_of_the_papers_is_listed() -> None:
    wrong = [
        [row["what"], f"{row['dataset']}, {row['backbone']}", row["reported_MB"], row["computed_MB"]]
        for row in published_costs()
        if row["within_rounding"] == "NO"
    ]
    assert rows(PAGE, "method of the cell") == wrong


def test_every_formula_has_its_line() -> None:
    listed = " ".join(row[0] for row in rows(PAGE, "method")).lower().replace("fedcof's oracle", "fedcof-oracle")
    for method in FORMULAS:
        assert method in listed.replace("one-shot fedavg", "one-shot-fedavg"), method
