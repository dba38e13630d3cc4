"""The advice in words."""

from fedstats_app.methods import display_name
from fedstats_app.report.advice import Candidate, advice_lines, advise
from tests.report.test_advice import USUAL


def lines(*candidates: Candidate, num_test: int = 2000, chance: float = 0.1) -> list[str]:
    return advice_lines(advise(candidates, num_test, chance=chance))


def test_what_to_take_what_the_noise_is_and_what_to_take_for_less() -> None:
    taken = f"{display_name('fedroot')}: 85.00 % for 3.90 MB"
    assert lines(*USUAL) == [
        f"Take {taken}, within the noise of Fed3R (85.35 % for 40.0 MB) at 1/10 of its bytes.",
        "Noise is the 95% interval of Fed3R on 2,000 test samples, 83.7 to 86.8 %.",
        "With less to send, FedCOF: 81.40 % for 1.91 MB, 3.60 points less at 1/2 of the bytes.",
    ]


def test_the_most_accurate_may_be_the_one_to_take() -> None:
    first, *_ = lines(*USUAL[:2], Candidate("fed3r", 0.9, 3_000_000))
    assert first == "Take Fed3R: 90.00 % for 3.00 MB, the most accurate; no cheaper method is within its noise."
    first, *others = lines(*USUAL[:2])
    assert first == "Take FedCOF: 81.40 % for 1.91 MB, the most accurate; no cheaper method is within its noise."
    assert len(others) == 1


def test_a_test_set_that_tells_nothing_apart_is_said_to() -> None:
    assert lines(*USUAL, num_test=40) == [
        "The 40 test samples cannot tell the methods apart: all lie within the 95% interval of Fed3R, 70.9 to 92.9 %.",
        "Take FedCOF: 81.40 % for 1.91 MB; no method sends less.",
    ]


def test_at_chance_nothing_is_taken() -> None:
    assert lines(Candidate("fedncm", 0.11, 10), Candidate("fed3r", 0.12, 20), num_test=1234, chance=0.115) == [
        "No method is better than naming the most frequent class, as far as 1,234 test samples can tell."
    ]
    assert advice_lines(None) == []


def test_a_share_of_bytes_is_a_fraction_or_per_cent() -> None:
    for dear, words in ((3000, "1/3"), (40_400, "1/40"), (1300, "77 %"), (2500, "40 %"), (1001, "100 %")):
        first, *_ = lines(Candidate("fedncm", 0.85, 1000), Candidate("fed3r", 0.8501, dear), Candidate("x", 0.1, dear))
        assert first.endswith(f"at {words} of its bytes."), first
