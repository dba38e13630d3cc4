"""Temperature scaling (Guo et al. 2017): from scores to probabilities, chosen from sums that add over clients.

The scores of closed-form heads order the classes but are no log-probabilities: their scale depends on the method and
the features. Dividing them by one number, the temperature, before the softmax changes no prediction and makes
probabilities of them.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedstats_app.statistics.accumulation import Addable, check_labels, check_tensor

# From 0.001 to 1000: the methods' scores differ by orders of magnitude. Between neighbours losses are interpolated
# with their slopes, to 1e-5 nats, and the calibration error without them, to 0.004 (as seen on 2,000 test images).
PER_DECADE, DECADES = 16, 3
TEMPERATURES = tuple(10.0 ** (step / PER_DECADE) for step in range(-DECADES * PER_DECADE, DECADES * PER_DECADE + 1))
# Sites with a floor tell of every so manieth: a quarter of a decade apart.
TEMPERATURE_STEP = 4
# Neighbours on either side of a guess that are measured first, and samples that a guess is made from.
NEIGHBOURS, SAMPLES_OF_GUESS = 3, 512
# Equal intervals of confidence, as in Guo et al. 2017.
NUM_BINS = 15
NUM_LOSSES = 4
# Exponentials of smaller numbers underflow in float32, which takes five times as long, and do not change a sum that
# contains a 1.
_NO_LIKELIHOOD = -87.0
# Of scores that stay in a processor's cache from one temperature to the next: four times as fast as whole matrices.
_NUMBERS_AT_ONCE = 2**15
_POINTS_BETWEEN = 101


@dataclass(frozen=True)
class Calibration:
    """A temperature, and its effect.

    Attributes
    ----------
    temperature : float
        Divide scores by it before the softmax.
    nll_before, nll_after : float or None
        Mean negative log-likelihood in nats, at temperature 1 and after; None where clients chose. After: each half of
        the samples is judged at the temperature of the other half (:func:`cross_fitted`).
    ece_before, ece_after : float or None
        Expected calibration error, 0 to 1, likewise.
    num_examples : int
        Samples it was chosen on: those whose class the head knows.
    fitted_on : str
        Those samples, in words.
    """

    temperature: float
    nll_before: float | None
    nll_after: float | None
    ece_before: float | None
    ece_after: float | None
    num_examples: int
    fitted_on: str = ""


@dataclass(frozen=True, eq=False)
class CalibrationSums(Addable):
    """Losses and calibration errors of some samples at every temperature of a list; a commutative monoid under ``+``.

    Samples of classes that the head does not know (a score of -inf) are not counted: no temperature gives them a
    probability.

    Attributes
    ----------
    losses : Tensor
        (NUM_LOSSES, t) float64, sums over samples. Row 0: -log p(label); row 1: its derivative by the logarithm of the
        temperature; row 2: the mean of -log p(c) over the classes c that the head knows; row 3: its derivative.
    gaps : Tensor
        (t, NUM_BINS) float64, sum of confidence minus correctness (1 or 0) over the samples in a bin of confidence.
    num_examples : int
        Samples counted.
    temperatures : tuple of float
        The list, t positive numbers that ascend.
    """

    losses: Tensor
    gaps: Tensor
    num_examples: int
    temperatures: tuple[float, ...] = TEMPERATURES

    def __post_init__(self) -> None:
        t = len(self.temperatures)
        check_tensor("losses", self.losses, (NUM_LOSSES, t), torch.float64)
        check_tensor("gaps", self.gaps, (t, NUM_BINS), torch.float64)

    @classmethod
    def zeros(cls, temperatures: Sequence[float] = TEMPERATURES) -> CalibrationSums:
        """Return the identity of ``+``."""
        t = len(temperatures)
        losses = torch.zeros(NUM_LOSSES, t, dtype=torch.float64)
        return cls(losses, torch.zeros(t, NUM_BINS, dtype=torch.float64), 0, tuple(temperatures))

    @classmethod
    def from_logits(
        cls, logits: Tensor, labels: Tensor, temperatures: Sequence[float] = TEMPERATURES
    ) -> CalibrationSums:
        """Measure (n, C) scores against (n,) integer labels at every temperature.

        Parameters
        ----------
        logits : Tensor
            (n, C) scores, -inf for a class that the head does not know.
        labels : Tensor
            (n,) int64 in [0, C).
        temperatures : sequence of float
            Positive, ascending.

        Raises
        ------
        ValueError
            If a score is NaN or +inf, or a label is out of range.
        """
        logits, labels = logits.to("cpu", torch.float64), labels.to("cpu", torch.int64)
        check_labels(labels, logits.shape[1])
        scores, num_known = logits, torch.tensor(logits.shape[1])
        if not all_known(logits):
            known = torch.isfinite(logits.gather(1, labels.unsqueeze(1)).squeeze(1))
            logits, labels = logits[known], labels[known]
            finite = torch.isfinite(logits)
            scores, num_known = torch.where(finite, logits, 0.0), finite.sum(dim=1)
        sums = cls.zeros(temperatures)
        correct = (logits.argmax(dim=1) == labels).to(torch.float64)
        largest = logits.amax(dim=1)
        own, mean = scores.gather(1, labels.unsqueeze(1)).squeeze(1), scores.sum(dim=1) / num_known
        # At most 0: likelihoods are relative to the likeliest class's, and float32 has enough of their digits.
        below = (logits - largest.unsqueeze(1)).to(torch.float32)
        partitions, expected = torch.empty(2, len(sums.temperatures), len(labels), dtype=torch.float64)
        rows = max(1, _NUMBERS_AT_ONCE // logits.shape[1])
        for block in (slice(start, start + rows) for start in range(0, len(labels), rows)):
            for index, temperature in enumerate(sums.temperatures):
                scaled = (below[block] / temperature).clamp_(min=_NO_LIKELIHOOD)
                likelihoods = scaled.exp()
                partitions[index, block] = likelihoods.sum(dim=1)
                expected[index, block] = likelihoods.mul_(scaled).sum(dim=1)
        expected /= partitions
        for index, temperature in enumerate(sums.temperatures):
            log_partitions = partitions[index].log()
            for row, score in ((0, own - largest), (2, mean - largest)):
                losses = log_partitions - score / temperature
                sums.losses[row, index] = losses.sum()
                sums.losses[row + 1, index] = (score / temperature - expected[index]).sum()
            confidences = 1.0 / partitions[index]
            bins = (confidences * NUM_BINS).long().clamp_(max=NUM_BINS - 1)
            sums.gaps[index].index_add_(0, bins, confidences - correct)
        return cls(sums.losses, sums.gaps, len(labels), sums.temperatures)

    @property
    def has_least(self) -> bool:
        """True if no temperature of TEMPERATURES outside the list can have a smaller loss than the best of it.

        The loss is convex in 1 / temperature: one that is less than both neighbours' is the least.
        """
        if self.num_examples == 0:
            return True
        nearest = int((self.losses[0] + self.losses[2] / self.num_examples).argmin())
        place = TEMPERATURES.index(self.temperatures[nearest])
        around = TEMPERATURES[max(place - 1, 0) : place + 2]
        return around == self.temperatures[max(nearest - (place > 0), 0) : nearest + 2]

    def mean_nll(self, temperature: float) -> float:
        """Return the mean negative log-likelihood in nats at one of the temperatures; NaN without samples.

        Raises
        ------
        ValueError
            If the temperature is none of the list.
        """
        index = self._index(temperature)
        return float(self.losses[0, index]) / self.num_examples if self.num_examples else float("nan")

    def expected_calibration_error(self, temperature: float) -> float:
        """Return the expected calibration error at one of the temperatures; NaN without samples.

        The mean, weighted by samples, of the distance between mean confidence and accuracy over NUM_BINS equal bins of
        confidence (Guo et al. 2017, eq. 3); with sums per bin the weights cancel.

        Raises
        ------
        ValueError
            If the temperature is none of the list.
        """
        gaps = self.gaps[self._index(temperature)]
        return float(gaps.abs().sum()) / self.num_examples if self.num_examples else float("nan")

    def best_temperature(self) -> float | None:
        """Return the best temperature, or None without samples or a choice of classes.

        It has the least negative log-likelihood of the samples and of an additional average one, whose label is uniform
        over the classes. Without it, samples that are all predicted right would lead to temperature 0 and
        probabilities of 1; with it, n of them only imply that an error has a probability of about 1 / n (the idea of
        Platt's 1999 targets).
        """
        # With one known class every temperature gives it probability 1.
        if self.num_examples == 0 or not bool(self.losses[2].any()):
            return None
        objective = self.losses[:2] + self.losses[2:] / self.num_examples  # and its slope
        nearest = int(objective[0].argmin())
        neighbours = (left for left in (nearest - 1, nearest) if 0 <= left < len(objective[0]) - 1)
        found = (self._least_between(objective, left) for left in neighbours)
        _, left, share = min(found, key=lambda minimum: minimum[0])
        low, high = self.temperatures[left], self.temperatures[left + 1]
        return float(f"{low * (high / low) ** share:.6g}")

    def between(self, temperature: float) -> tuple[float, Tensor]:
        """Interpolate the sum of -log p(label) and (NUM_BINS,) gaps at a temperature within the list.

        Accurate to 1e-5 nats a sample, and to about 0.004 of the calibration error.
        """
        left = min(bisect.bisect_right(self.temperatures, temperature), len(self.temperatures) - 1) - 1
        low, high = self.temperatures[left], self.temperatures[left + 1]
        share = math.log(temperature / low) / math.log(high / low)
        gaps = torch.lerp(self.gaps[left], self.gaps[left + 1], share)
        nll = _hermite(self.losses[:2], left, math.log(high / low), torch.tensor(share, dtype=torch.float64))
        return float(nll), gaps

    def _least_between(self, objective: Tensor, left: int) -> tuple[float, int, float]:
        """Return the least value between two neighbours, the left one, and the share of the way from it."""
        shares = torch.linspace(0.0, 1.0, _POINTS_BETWEEN, dtype=torch.float64)
        width = math.log(self.temperatures[left + 1] / self.temperatures[left])
        values = _hermite(objective, left, width, shares)
        best = int(values.argmin())
        return float(values[best]), left, float(shares[best])

    def _index(self, temperature: float) -> int:
        if temperature not in self.temperatures:
            raise ValueError(f"temperature must be one of the {len(self.temperatures)} measured, got {temperature}")
        return self.temperatures.index(temperature)


def temperatures_around(logits: Tensor, labels: Tensor, number: int) -> tuple[float, ...]:
    """Return 1 and the temperatures around the best for ``number`` samples, guessed from a few of them.

    Arguments are those of :meth:`CalibrationSums.from_logits`.
    """
    guess = CalibrationSums.from_logits(logits, labels, TEMPERATURES[::NEIGHBOURS])
    best = NEIGHBOURS * int((guess.losses[0] + guess.losses[2] / number).argmin())
    return tuple(sorted({1.0, *TEMPERATURES[max(best - NEIGHBOURS, 0) : best + NEIGHBOURS + 1]}))


def cross_fitted(halves: Sequence[CalibrationSums]) -> Calibration | None:
    """Choose the best temperature for two halves of some samples, and judge each half at that of the other.

    The temperature is that of all; None without samples or a choice of classes.

    Raises
    ------
    ValueError
        If temperature 1, with which it is compared, is not in the list.
    """
    total = halves[0] + halves[1]
    if (temperature := total.best_temperature()) is None:
        return None
    others = [temperature if (best := half.best_temperature()) is None else best for half in reversed(halves)]
    found = Calibration(temperature, None, None, None, None, total.num_examples, "test samples of the server")
    return judged(found, list(zip(halves, others, strict=True)))


def judged(chosen: Calibration, parts: Sequence[tuple[CalibrationSums, float]]) -> Calibration:
    """Return a calibration with the numbers before and after it, on parts of some samples at a temperature each.

    Raises
    ------
    ValueError
        If temperature 1, with which they are compared, is not in the list.
    """
    total = sum((sums for sums, _ in parts), CalibrationSums.zeros(parts[0][0].temperatures))
    if not (number := total.num_examples):
        return chosen
    found = [sums.between(temperature) for sums, temperature in parts]
    gaps = torch.stack([gaps for _, gaps in found]).sum(dim=0)
    return replace(
        chosen,
        nll_before=total.mean_nll(1.0),
        nll_after=sum(nll for nll, _ in found) / number,
        ece_before=total.expected_calibration_error(1.0),
        ece_after=float(gaps.abs().sum()) / number,
    )


def is_known(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (n,) bool, the samples whose class the head of (n, C) logits knows."""
    return torch.isfinite(logits).gather(1, labels.unsqueeze(1)).squeeze(1)


def sample_losses(logits: Tensor, labels: Tensor, temperatures: Sequence[float] = TEMPERATURES) -> Tensor:
    """Measure each sample's losses at t temperatures; arguments as of :meth:`CalibrationSums.from_logits`.

    Returns
    -------
    Tensor
        (2, m, t) float64: -log p(label) and the mean of -log p(c) over the classes that the head knows, of the samples
        whose class it knows.
    """
    kept = is_known(logits, labels)
    logits, labels = logits[kept].to("cpu", torch.float64), labels[kept]
    known = torch.isfinite(logits)
    found = logits.new_empty(2, len(labels), len(temperatures))
    for index, temperature in enumerate(temperatures):
        losses = -torch.log_softmax(logits / temperature, dim=1)
        found[0, :, index] = losses.gather(1, labels.unsqueeze(1)).squeeze(1)
        found[1, :, index] = torch.where(known, losses, 0.0).sum(dim=1) / known.sum(dim=1)
    return found


def person_losses(losses: Tensor, persons: Tensor) -> Tensor:
    """Average (2, n, t) losses over the samples of each person, by (n,) int64, to (2, p, t)."""
    unit, counts = torch.unique(persons, return_inverse=True, return_counts=True)[1:]
    sums = losses.new_zeros(2, len(counts), losses.shape[2])
    return sums.index_add_(1, unit, losses).div_(counts.view(1, -1, 1))


def voted_temperature(losses: Tensor, *, without_each: bool) -> int | None:
    """Return the index of the best temperature as of :meth:`CalibrationSums.best_temperature`, None if undecided.

    Parameters
    ----------
    losses : Tensor
        (2, n, t), of :func:`sample_losses`.
    without_each : bool
        Return None unless the best is the same without any one of the samples. So a single sample can decide whether
        there is an answer, but not the answer.
    """
    num_samples = losses.shape[1]
    if num_samples < 2 or not bool(losses[1].any()):
        return None
    sums = losses.sum(dim=1, keepdim=True)
    best = int((sums[0] + sums[1] / num_samples).argmin())
    if without_each:
        others = sums - losses
        if bool(((others[0] + others[1] / (num_samples - 1)).argmin(dim=1) != best).any()):
            return None
    return best


def median_temperature(votes: Iterable[tuple[int, int]]) -> Calibration | None:
    """Return the median of clients' best temperatures, weighted by samples; None without votes.

    A client with less than half of all samples cannot move it out of the range of the others'. A vote is an index into
    TEMPERATURES and a number of samples.
    """
    ordered = sorted(vote for vote in votes if vote[1])
    total = sum(number for _, number in ordered)
    if not total:
        return None
    reached, middle = 0, []
    for index, number in ordered:
        before, reached = reached, reached + number
        if before * 2 <= total <= reached * 2:  # both, where half of the samples are on either side
            middle.append(index)
    low, high = TEMPERATURES[middle[0]], TEMPERATURES[middle[-1]]
    return Calibration(float(f"{math.sqrt(low * high):.6g}"), None, None, None, None, total, "samples that sites kept")


def _hermite(curve: Tensor, left: int, width: float, share: Tensor) -> Tensor:
    """Return the cubic through two neighbours of a (2, t) curve of values and slopes, at shares of the way."""
    (a, b), (da, db) = curve[0, left : left + 2], curve[1, left : left + 2] * width
    u, v = share, 1.0 - share
    between: Tensor = a * v * v * (1 + 2 * u) + b * u * u * (1 + 2 * v) + da * u * v * v - db * u * u * v
    return between


def all_known(logits: Tensor) -> bool:
    """Tell whether no score (n, C) is -inf, which stands for a class that the head does not know.

    Raises
    ------
    ValueError
        If a score is NaN or +inf.
    """
    low, high = map(float, logits.aminmax()) if logits.numel() else (0.0, 0.0)  # both NaN if one score is
    if not high < math.inf:
        raise ValueError("scores must be finite, or -inf for a class that the head does not know, got NaN or +inf")
    return low > -math.inf
