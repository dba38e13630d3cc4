import re
from collections.abc import Callable

import pytest

from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.tables import results_table

Make = Callable[..., MethodResult]


def _cells(table: str) -> list[list[str]]:
    """Read the table back: columns are apart by two spaces or more."""
    lines = [line for line in table.splitlines() if set(line) != {"-"}]
    return [re.split(r" {2,}", line.strip()) for line in lines]


def test_every_number_is_in_its_column(make_result: Make) -> None:
    table = results_table(
        [
            make_result(
                "fedncm", 0.7512, macro_accuracy=0.7, macro_f1=0.6895, wire_bytes=1_700_000, solve_seconds=0.004
            ),
            make_result(
                "fed3r",
                0.86205,
                wire_bytes=665_440_000,
                solve_seconds=1.5,
                regulariser="lambda 310 (auto)",
                ridge_effective=310.0,
                condition_number=123_456.0,
            ),
            make_result("fedcof", None, wire_bytes=61_064_140_800, num_clients=9275, regulariser=""),
        ]
    )
    assert ["|".join(line) for line in _cells(table)] == [
        "method|accuracy|balanced|macro F1|each sent|all sent (MB)|solve (s)|ridge|condition|regulariser",
        "FedNCM|75.12|70.00|68.95|17.0 KB|1.70|0.00|-|-|none",
        "Fed3R|86.20|86.20|-|6.65 MB|665.4|1.50|310|1.2e+05|lambda 310 (auto)",
        "FedCOF|-|-|-|6.58 MB|61,064|0.25|-|-|-",
    ]


def test_numbers_end_where_their_headings_end(make_result: Make) -> None:
    table = results_table([make_result("fedncm", 0.05), make_result("fed3r", 1.0, solve_seconds=1234.5)]).splitlines()
    heading, rows = table[1], table[3:5]
    for name, texts in (("accuracy", ["5.00", "100.00"]), ("solve (s)", ["0.25", "1234.50"])):
        end = heading.index(name) + len(name)
        assert [row[end - len(text) - 1 : end] for row, text in zip(rows, texts, strict=True)] == [
            f" {text}" for text in texts
        ]


def test_a_long_regulariser_goes_on_below_itself_within_120_columns(make_result: Make) -> None:
    words = (
        "lambda 310 chosen by generalised cross-validation over the eigenvalues, effective ridge 310, condition 1.2e+05"
    )
    lines = results_table([make_result("fed3r", regulariser=words), make_result("fedcgs")]).splitlines()
    start = lines[1].index("regulariser")
    body = lines[3:-2]
    assert len(body) > 1
    assert all(line[:start].strip() == "" for line in body[1:])
    assert " ".join(line[start:] for line in body) == words
    assert max(map(len, lines)) <= 120
    assert lines[-2].startswith("FedCGS")


def test_the_table_is_plain_ascii_ruled_over_its_whole_width(make_result: Make) -> None:
    table = results_table([make_result("fedncm")])
    lines = table.splitlines()
    assert table.isascii()
    assert not table.endswith("\n")
    assert {lines[0], lines[2], lines[-1]} == {"-" * max(map(len, lines))}


@pytest.mark.parametrize(
    ("per_client", "shown"),
    [(512, "0.512 KB"), (999_400, "999.4 KB"), (999_960, "1.00 MB"), (5_877_760, "5.88 MB"), (118e9, "118.0 GB")],
)
def test_bytes_per_client_have_the_unit_that_suits(make_result: Make, per_client: float, shown: str) -> None:
    row = make_result("fedncm", wire_bytes=int(per_client * 10), num_clients=10)
    assert _cells(results_table([row]))[1][4] == shown


def test_bytes_of_each_are_shared_by_those_who_sent_them(make_result: Make) -> None:
    extended = make_result("fedncm", wire_bytes=3_000_000, num_clients=100)
    assert [_cells(results_table([extended], *sent))[1][4] for sent in ((), (3,), (0,))] == ["30.0 KB", "1.00 MB", "-"]


def test_no_client_and_no_method_still_give_a_table(make_result: Make) -> None:
    (_, empty) = _cells(results_table([make_result("fedncm", None, num_clients=0, wire_bytes=0)]))
    assert empty[1:7] == ["-", "-", "-", "-", "0.00", "0.25"]
    assert len(_cells(results_table([]))) == 1
