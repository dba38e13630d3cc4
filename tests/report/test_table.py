"""The tables of methods, trainings and personal models in the terminal."""

import re
from collections.abc import Callable

import pytest

from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.personal_result import PersonalResult, approach_name
from fedstats_app.report.tables import personal_table, results_table, training_table
from fedstats_app.report.training_record import TrainingResult
from tests.support.trainings import make_training

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


def cells(table: str, name: str) -> list[str]:
    (line,) = (line for line in table.splitlines() if line.startswith(name))
    return line.replace(" (", "(").split()[1:]


RANDOM = make_training("random", [0.1, 0.3, 0.5, 0.6, 0.7, 0.8], up=5_000_000, down=5_000_000, passes=1000)


def test_a_row_says_what_it_took_to_get_as_far_as_the_random_head() -> None:
    costs = {"up": 5_000_000, "down": 5_000_000, "passes": 1000, "seconds": 700.0}
    start = {"start_bytes": 500_000, "start_forward_passes": 500}
    fedcof = make_training("fedcof", [0.7, 0.85, 0.9, 0.88], **costs, **start)
    table = training_table([RANDOM, fedcof])
    random, other = (" ".join(cells(table, f"{start}-probe")) for start in ("random", "fedcof"))
    assert random == "10.00 80.00 80.00 5 50.0 5(100%) 50.0(100%) 5,000(100%) 2"
    assert other == "70.00 88.00 90.00 3 30.5 1(20%) 10.5(21%) 1,500(30%) 2,100"


def test_who_starts_beyond_needs_no_round_and_who_never_gets_there_is_said_so() -> None:
    table = training_table(
        [RANDOM, make_training("fed3r", [0.81, 0.9], start_bytes=329_000_000), make_training("fedncm", [0.7, 0.79])]
    )
    assert cells(table, "fed3r-probe")[5:8] == ["0(0%)", "329.0(658%)", "0(0%)"]
    assert cells(table, "fedncm-probe")[5:8] == ["never"] * 3


def test_only_a_random_head_of_the_same_stage_is_compared_with() -> None:
    table = training_table([RANDOM, make_training("fedcof", [0.8, 0.9], stage="full")])
    assert cells(table, "fedcof-full")[5:8] == ["-"] * 3


def test_without_a_random_head_there_are_no_columns_about_one() -> None:
    for others in ([], [make_training("random", [None, None])]):
        table = training_table([*others, make_training("fedcof", [0.8, 0.9], seconds=700.0)])
        assert "random head" not in table and "passes" not in table
        assert cells(table, "fedcof-probe")[3:] == ["1", "0.00300", "700"]


HUGE = {"up": 10**15, "down": 10**15, "passes": 10**12, "seconds": 1e6}


@pytest.mark.parametrize(
    "results",
    [
        [RANDOM],
        [],
        [
            make_training("random", [0.1, 1.0], **HUGE),
            make_training("fedcof", [0.1, 1.0], name="a name of " * 13, **HUGE),
        ],
    ],
    ids=["one", "none", "large"],
)
def test_lines_fit_the_terminal_and_columns_are_aligned(results: list[TrainingResult]) -> None:
    lines = training_table(results).splitlines()
    assert all(len(line) <= 120 and line.isascii() for line in lines)
    assert len(lines) == 5 + len(results)
    assert ("random head" in lines[1]) == bool(results)
    assert all(len(line) == len(lines[0]) for line in lines[3:])


def test_a_head_worse_than_its_start_or_its_best_round_is_marked_below() -> None:
    interval = {"accuracy_interval": (0.50, 0.58)}
    results = [
        make_training("fedncm", [0.578, 0.56, 0.541], quality=interval),
        make_training("fedcof", [0.5, 0.79, 0.541], quality=interval),
        make_training("fed3r", [0.5, 0.541]),
    ]
    *_, first, second = training_table(results).splitlines()
    assert first == ("* fedncm-probe: its accuracy, 54.10%, is below that of its start (57.80%), which can be chance")
    assert second == "* fedcof-probe: its accuracy, 54.10%, is below that of round 1 (79.00%)"
    assert "fed3r-probe:" not in training_table(results)


def test_every_number_of_personal_models_is_in_its_column() -> None:
    table = personal_table(
        [
            PersonalResult("global-fed3r", {0: 8, 1: 30}, {0: 10, 1: 60}, {}, 2_000_000, 1000, 0, 1.2),
            PersonalResult("local-only", {0: 9}, {0: 10}, {1: "NaN"}, 1_234_000_000, 5_000_000, 1_280_000, 3600.4),
            PersonalResult("one-shot", {}, {}, {0: "a", 1: "b"}),
        ]
    )
    assert ["|".join(line) for line in _cells(table)] == [
        "personal models|mean (%)|deviation|pooled (%)|clients|failed|MB down|MB up|passes|seconds",
        "global head, Fed3R|65.00|15.00|54.29|2|-|2.00|0.00100|0|1",
        "local training only|90.00|0.00|90.00|1|1|1,234|5.00|1.28e+06|3,600",
        "FedCGS one-shot|-|-|-|0|2|0.00|0.00|0|0",
    ]


def test_names_are_spelled_for_people_and_unknown_ones_are_kept() -> None:
    names = {
        "global-fedncm": "global head, FedNCM",
        "closed-form-fedcgs": "closed form, FedCGS",
        "one-shot": "FedCGS one-shot",
        "my-own": "my-own",
    }
    assert {approach: approach_name(approach) for approach in names} == names
