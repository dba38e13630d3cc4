"""Recommendation of a head: the most accurate on the test samples, and the loss of the next cheaper one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from torch import Tensor

from fedstats_app.heads.paired import paired_p_value
from fedstats_app.methods import display_name, method_type
from fedstats_app.report.method_result import wilson_interval
from fedstats_app.report.text_columns import bytes_with_unit

# Instead of test samples.
LEFT_OUT = "training samples, each left out of the head in turn"
# Test samples tell two heads apart if chance gives such a difference more rarely than this.
LEVEL = 0.05
# By mean accuracy over the data sets of research/results.md, where no test samples decide.
USUALLY_BEST = ("fedcgs", "fed3r", "fedroot", "fedcof", "fedncm")
Sends = Literal["means", "directions", "gram"]
# In the order of how much they reveal about single samples.
_SENT: Mapping[Sends, str] = {
    "means": "class means",
    "directions": "directions of the scatter",
    "gram": "Gram matrix",
}


@dataclass(frozen=True)
class Candidate:
    """A method, its accuracy from 0 to 1 (None if not scored), the bytes of all clients, and what each client sends."""

    method: str
    accuracy: float | None
    wire_bytes: int
    sends: Sends = "means"


@dataclass(frozen=True)
class Advice:
    """A recommended head.

    Attributes
    ----------
    choice : Candidate
        The most accurate; if none was scored, the one that is usually best.
    cheaper : Candidate or None
        The most accurate of those that send fewer bytes; None if there is none, or none was scored.
    p_value : float
        Probability of at least such a difference between the two if neither were better, by a paired test.
    num_test : int
        Test samples; 0 if none was scored.
    at_chance : bool
        No head is better than naming the most frequent class, as far as the samples can tell.
    samples : str
        What the test samples are.
    measure : str
        Measured in place of the accuracy, of several labels or numbers a sample.
    """

    choice: Candidate
    cheaper: Candidate | None = None
    p_value: float = 1.0
    num_test: int = 0
    at_chance: bool = False
    samples: str = "test samples"
    measure: str = ""

    @property
    def text(self) -> list[str]:
        """The recommendation in sentences, one per line."""
        name, price = display_name(self.choice.method), bytes_with_unit(self.choice.wire_bytes)
        if self.choice.accuracy is None:
            return [f"Take {name} (not scored): usually the most accurate of those that these statistics allow."]
        samples = f"{self.num_test:,} {self.samples}"
        if self.measure:
            return [f"Take {name}: {self.measure} {self.choice.accuracy:.3f} on {samples}, for {price}."]
        if self.at_chance:
            return [f"No method is better than naming the most frequent class, as far as {samples} can tell."]
        lines = [f"Take {name}: {100 * self.choice.accuracy:.2f} % of {samples}, for {price}."]
        if self.cheaper is not None and self.cheaper.accuracy is not None:
            other, loss = display_name(self.cheaper.method), 100 * (self.choice.accuracy - self.cheaper.accuracy)
            can = "tell them apart" if self.p_value < LEVEL else "cannot tell them apart"
            line = f"{other} sends {bytes_with_unit(self.cheaper.wire_bytes)} and loses {loss:.2f} points; "
            lines.append(f"{line}these samples {can} (paired p = {self.p_value:.2g}).{self._revealed()}")
        return lines

    def _revealed(self) -> str:
        """Compare what the two reveal about single samples; "" if they send the same."""
        if self.cheaper is None or self.cheaper.sends == self.choice.sends:
            return ""
        less, more = sorted((self.choice, self.cheaper), key=lambda candidate: list(_SENT).index(candidate.sends))
        sent = f"The {_SENT[more.sends]} of {display_name(more.method)}"
        return f" {sent} can reveal more about single samples than {_SENT[less.sends]}."

    def to_json(self) -> dict[str, object]:
        """Return the entry for results.json."""
        return {
            "method": self.choice.method,
            "num_test_examples": self.num_test,
            "at_chance": self.at_chance,
            "cheaper": None if self.cheaper is None else {**asdict(self.cheaper), "p_value": self.p_value},
            "text": self.text,
        }


def advise(
    candidates: Sequence[Candidate],
    right: Mapping[str, Tensor],
    num_test: int,
    chance: float,
    samples: str = "test samples",
    measure: str = "",
) -> Advice | None:
    """Recommend the most accurate method; None without candidates.

    Parameters
    ----------
    candidates : sequence of Candidate
        Of different methods, all of them scored on the same samples or none.
    right : mapping
        By method, (n,) integers or booleans: samples that it classifies correctly in each of n cells, the same cells
        for all. A cell is one sample, or one class of a client's hold-out samples.
    num_test : int
        Samples in all cells.
    chance : float
        Accuracy of always naming the most frequent class, 0 to 1.
    samples : str
        What the test samples are.
    measure : str
        Measured in place of the accuracy, of several labels or numbers a sample; the others are then not used.
    """
    scored = {candidate: candidate.accuracy for candidate in candidates if candidate.accuracy is not None}
    if not scored or num_test < 1:
        ranks = {name: rank for rank, name in enumerate(USUALLY_BEST)}
        usual = sorted(candidates, key=lambda candidate: ranks.get(method_type(candidate.method).name, len(ranks)))
        return Advice(usual[0]) if usual else None
    best = min(scored, key=lambda candidate: (-scored[candidate], candidate.wire_bytes))
    if measure:
        return Advice(best, num_test=num_test, measure=measure)
    at_chance = wilson_interval(round(scored[best] * num_test), num_test)[0] <= chance
    fewer = [candidate for candidate in scored if candidate.wire_bytes < best.wire_bytes]
    if not fewer:
        return Advice(best, num_test=num_test, at_chance=at_chance, samples=samples)
    cheaper = min(fewer, key=lambda candidate: (-scored[candidate], candidate.wire_bytes))
    p_value = paired_p_value(right[best.method].int() - right[cheaper.method].int())
    return Advice(best, cheaper, p_value, num_test, at_chance, samples)
