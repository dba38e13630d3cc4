"""Processes of one machine count together what they have done."""

import subprocess
import sys
from pathlib import Path

from fedstats_app.base.tally import TALLIES, add_to_tally, tallied

ADDING = """
import sys
from pathlib import Path
from fedstats_app.base.tally import add_to_tally
for _ in range(500):
    add_to_tally(Path(sys.argv[1]), "run", 2, known=False)
add_to_tally(Path(sys.argv[1]), "run", 7, known=True)
"""


def test_what_several_processes_add_at_once_is_counted_to_the_last_piece(tmp_path: Path) -> None:
    with tallied(tmp_path, "run") as tally:
        assert tally is not None
        adding = [subprocess.Popen([sys.executable, "-c", ADDING, str(tmp_path)]) for _ in range(3)]
        assert [one.wait(60) for one in adding] == [0, 0, 0]
        tally.look()
        assert (tally.new, tally.known) == (3000, 21)
        add_to_tally(tmp_path, "run", 5, known=False)
        assert tally.new == 3000
        tally.look()
        assert (tally.new, tally.known) == (3005, 21)
    assert not list((tmp_path / TALLIES).iterdir())
    tally.look()  # by a thread that did not hear that it is over


def test_only_the_user_reads_it_and_none_takes_anothers_place(tmp_path: Path) -> None:
    with tallied(tmp_path, "run") as first, tallied(tmp_path, "run") as second:
        assert (first is None, second is None) == (False, True)
        assert (tmp_path / TALLIES / "run").stat().st_mode & 0o077 == 0
        assert (tmp_path / TALLIES).stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_made_costs_the_count_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with tallied(tmp_path / "file", "run") as tally:
        assert tally is None
