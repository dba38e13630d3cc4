"""The tables of heads and trainings, in the terminal and as rows for the page."""

import re
from collections.abc import Callable

from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.tables import Table, heads_table, trainings_table
from tests.support.trainings import make_training

Make = Callable[..., MethodResult]


def shown(table: Table) -> list[str]:
    """Read a terminal's table back: columns are apart by two spaces or more."""
    lines = [line.strip() for line in str(table).splitlines() if set(line) != {"-"}]
    return [re.sub(r" {2,}", "|", line) for line in lines]


def test_every_number_of_a_head_is_in_its_column(make_result: Make) -> None:
    results = [
        make_result("fedncm", 0.7512, accuracy_interval=(0.7, 0.8), wire_bytes=1_700_000),
        make_result("fed3r", 0.86205, macro_f1=0.8, macro_auroc=0.9, wire_bytes=665_440_000),
        make_result("fedcof", None, wire_bytes=61_064_140_800, regulariser=""),
    ]
    table = heads_table({one.method: one.to_json() for one in results}, 100, taken="fed3r")
    assert shown(table) == [
        "method|accuracy|95 % interval|each site sends|all sites send",
        "FedNCM|75.12 %|70.0 to 80.0|17.0 KB|1.70 MB",
        "Fed3R (take this)|86.20 %|-|6.65 MB|665.4 MB",
        "FedCOF|-|-|610.6 MB|61.1 GB",
    ]
    assert table.rows[1][3:6] == ("86.20 %", "80.00 %", "0.9000") and table.rows[1][8:] == ("none",)
    assert table.rows[2][-1] == "-"


def test_every_number_of_a_training_is_in_its_column() -> None:
    costs = {"up": 5_000_000, "down": 5_000_000, "seconds": 700.0, "start_bytes": 500_000}
    table = trainings_table([make_training("fedcof", [0.7, 0.85, 0.9, 0.88], **costs, notes=["worse " * 40])])
    head, line, *notes = shown(table)
    assert head == "training|start|end|rounds|bytes|time"
    assert line == "FedCOF, then probe|70.00 %|88.00 %|3|30.5 MB|35 min" and table.rows[0][3:5] == ("90.00 %", "2")
    assert len(notes) > 1 and notes[0].startswith("FedCOF, then probe: worse worse")
