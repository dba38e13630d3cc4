"""The table of personal models."""

import re

from fedstats_app.report.personal_result import PersonalResult, approach_name
from fedstats_app.report.tables import personal_table


def _cells(line: str) -> str:
    return re.sub(r" {2,}", "|", line.strip())


def test_every_number_is_in_its_column() -> None:
    table = personal_table(
        [
            PersonalResult("global-fed3r", {0: 8, 1: 30}, {0: 10, 1: 60}, {}, 2_000_000, 1000, 0, 1.2),
            PersonalResult("fedavg-ft", {0: 9}, {0: 10}, {1: "NaN"}, 1_234_000_000, 5_000_000, 1_280_000, 3600.4),
            PersonalResult("fedproto", {}, {}, {0: "a", 1: "b"}),
        ]
    ).splitlines()
    rule = table[0]
    assert set(rule) == {"-"} and table[2] == rule and table[6] == rule and len(table) == 7
    assert (
        _cells(table[1]) == "personal models|mean (%)|deviation|pooled (%)|clients|failed|MB down|MB up|passes|seconds"
    )
    assert _cells(table[3]) == "global head, Fed3R|65.00|15.00|54.29|2|-|2.00|0.00100|0|1"
    assert _cells(table[4]) == "FedAvg, fine-tuned|90.00|0.00|90.00|1|1|1,234|5.00|1.28e+06|3,600"
    assert _cells(table[5]) == "FedProto|-|-|-|0|2|0.00|0.00|0|0"


def test_names_are_spelled_for_people_and_unknown_ones_are_kept() -> None:
    names = {
        "global-fedncm": "global head, FedNCM",
        "closed-form-fedcgs": "closed form, FedCGS",
        "one-shot": "FedCGS one-shot",
        "one-shot-sum": "FedCGS one-shot, eq. 12",
        "my-own": "my-own",
    }
    assert {approach: approach_name(approach) for approach in names} == names


def test_notes_stand_below_within_120_columns() -> None:
    note = "client 3 is not in round 1: " + "Diverged: the loss is nan, " * 8
    table = personal_table(
        [
            PersonalResult("one-shot", {0: 1}, {0: 2}),
            PersonalResult("a-name-that-goes-on-for-ever-and-ever", {0: 1}, {0: 2}, notes=(note, "short")),
        ]
    ).splitlines()
    assert max(map(len, table)) <= 120
    assert "a-name-that-goes-on-for-.." in table[4]
    below = table[6:]
    assert below[0].startswith("a-name-that-goes-on-for-ever-and-ever: client 3 is not in round 1")
    assert below[1].startswith("  ") and below[-1] == "a-name-that-goes-on-for-ever-and-ever: short"


def test_the_widest_table_has_120_columns() -> None:
    ones, failures = dict.fromkeys(range(2000), 1), dict.fromkeys(range(2000, 3000), "")
    huge = PersonalResult("x" * 40, ones, ones, failures, 10**12, 10**12, 10**12, 99_999.0)
    assert max(map(len, personal_table([huge]).splitlines())) <= 120
