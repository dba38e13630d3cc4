import pytest

from fedstats_app.report.tables import training_table
from fedstats_app.report.training_record import TrainingResult
from tests.support.trainings import make_training


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
