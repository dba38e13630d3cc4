import statistics

import pytest

from fedstats_app.report.training_record import mean_and_deviation, training_curves
from tests.support.trainings import make_training


def test_one_training_is_its_own_curve() -> None:
    training = make_training(
        "fedcof", [0.8, None, 0.9], up=1_000_000, down=2_000_000, passes=7, start_bytes=500_000, start_forward_passes=3
    )
    (curve,) = training_curves([training])
    assert (curve.name, curve.stage, curve.start, curve.num_seeds) == ("fedcof-probe", "probe", "fedcof", 1)
    assert curve.rounds == (0, 2)
    assert curve.accuracy == (0.8, 0.9)
    assert curve.deviation == (0.0, 0.0)
    assert curve.megabytes == (0.5, 6.5)
    assert curve.forward_passes == (3, 17)


def test_seeds_are_averaged_where_all_were_evaluated() -> None:
    seeds = [
        make_training("fedcof", [0.5, 0.6, 0.7, 0.9], up=1_000_000, down=0, start_bytes=0),
        make_training("fedcof", [0.7, None, 0.8], up=3_000_000, down=0, start_bytes=4_000_000),
    ]
    other = make_training("random", [0.1, 0.2])
    curve, alone = training_curves([seeds[0], other, seeds[1]])
    assert (curve.num_seeds, alone.num_seeds) == (2, 1)
    assert curve.rounds == (0, 2)
    assert curve.accuracy == pytest.approx((0.6, 0.75))
    assert curve.deviation == pytest.approx((statistics.stdev([0.5, 0.7]), statistics.stdev([0.7, 0.8])))
    assert curve.megabytes == pytest.approx((2.0, (2 + 10) / 2))


def test_trainings_of_one_name_must_be_of_one_kind() -> None:
    trainings = [make_training("fedcof", [0.5], name="x", stage=stage) for stage in ("probe", "full")]
    with pytest.raises(ValueError, match=r"named 'x' must be of one stage and start.*full.*probe"):
        training_curves(trainings)


def test_the_deviation_is_that_of_a_sample() -> None:
    assert mean_and_deviation([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert mean_and_deviation([5.0]) == (5.0, 0.0)
