"""Phases follow each other without a gap."""

from fedstats_app.report.state import Phases


def test_each_phase_begins_where_the_one_before_ended() -> None:
    times = iter((2.5, 2.5, 10.0))
    phases = Phases(lambda: next(times))
    for name in ("preparation", "nothing", "evaluation"):
        phases.end(name)
    assert phases.seconds == {"preparation": 2.5, "nothing": 0.0, "evaluation": 7.5}
