"""Privacy of Gaussian noise: of one answer, and of several together.

A Gaussian answer of sensitivity 1 and standard deviation 1 / mu distinguishes data sets that differ by one sample as
well as one draw distinguishes N(0, 1) from N(mu, 1): it is mu-GDP. Answers, each of which may depend on earlier ones,
compose exactly: mu^2 = sum of mu_i^2 (Dong, Roth and Su 2022, "Gaussian differential privacy", corollary 3.3). Such an
answer is (epsilon, delta)-private if and only if Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu) <= delta
(Balle and Wang 2018, "Improving the Gaussian mechanism for differential privacy", theorem 8).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from fedstats_app.secure.graph import CORRUPT, most_lost

# Halvings of an interval of numbers: until no number is left between its ends.
_HALVINGS = 200
MOST_EPSILON = 1000.0
# A promise that may be broken for one sample in a hundred is none.
MOST_DELTA = 0.01
# From here on erfcx is its asymptotic series, and exp(x^2) erfc(x) before.
_FAR = 25.0
# Charges of one promise, added up, may be above it by rounding.
ROUNDING = 1e-9


def delta_of(epsilon: float, mu: float) -> float:
    """Return the least delta at which a mu-GDP answer is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        At least 0.
    mu : float
        Above 0.

    Returns
    -------
    float
        In [0, 1], to about 1e-12 of its size, also where exp(epsilon) is beyond what a float holds.

    Raises
    ------
    ValueError
        If either is out of its range.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0 and math.isfinite(mu) and mu > 0):
        raise ValueError(f"epsilon must be at least 0 and mu above 0, got {epsilon} and {mu}")
    near, far = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    # exp(epsilon) Phi(-far) is exp(-near^2 / 2) erfcx(far / sqrt(2)) / 2, and Phi(near) likewise where near < 0.
    height = math.exp(-(near**2) / 2) / 2
    above = 1 - math.erfc(near / math.sqrt(2)) / 2 if near > 0 else height * _erfcx(-near / math.sqrt(2))
    return max(above - height * _erfcx(far / math.sqrt(2)), 0.0)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu, to the last bit or one, whose answers are (epsilon, delta)-private; 1 / mu is the noise.

    Parameters
    ----------
    epsilon : float
        Above 0, at most :data:`MOST_EPSILON`.
    delta : float
        Between 0 and 1.

    Raises
    ------
    ValueError
        If either is out of its range.
    """
    if not (0 < epsilon <= MOST_EPSILON and 0 < delta < 1):
        raise ValueError(f"epsilon must be in (0, {MOST_EPSILON:g}] and delta in (0, 1), got {epsilon} and {delta}")
    high = 1.0
    while delta_of(epsilon, high) <= delta:
        high *= 2
    return _halved(lambda mu: delta_of(epsilon, mu) <= delta, 0.0, high)[0]


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least epsilon at which a mu-GDP answer is (epsilon, delta)-private, rounded up.

    Raises
    ------
    ValueError
        If mu is not above 0, or delta is not between 0 and 1.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    if delta_of(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while delta_of(high, mu) > delta:
        high *= 2
    return _halved(lambda epsilon: delta_of(epsilon, mu) > delta, 0.0, high)[1]


def composed(mus: Iterable[float]) -> float:
    """Return the mu of all answers together, 0 of none."""
    return math.hypot(*mus)


def fits(mus: Iterable[float], epsilon: float, delta: float) -> bool:
    """Return whether all answers together are (epsilon, delta)-private, up to the rounding of their sum."""
    mu = composed(mus) * (1 - ROUNDING)
    return mu == 0 or delta_of(epsilon, mu) <= delta


def least_honest(parties: int) -> int:
    """Return how many parties, at least, have added their share of noise to a sum that is unmasked.

    Some may be lost, as many as a run survives, and some of the others corrupt, so that they leave their noise out.
    """
    return parties - most_lost(parties) - math.floor(CORRUPT * parties)


def signal_to_noise(num_samples: int, num_classes: int, dim: int, mu: float) -> float:
    """Return N mu / (2 C sqrt(d)): the length of a class's sum of deviations beside that of its noise, roughly."""
    return num_samples * mu / (2 * num_classes * math.sqrt(dim))


Place = Literal["sites", "local"]
# Where noise is added, as results.json has it.
PLACES: dict[Place, str] = {
    "sites": "shares of the sites, in secure sums",
    "local": "added by each site, all of it",
}


@dataclass(frozen=True)
class Promise:
    """Privacy that a run promises each sample of its sites, or each person.

    Attributes
    ----------
    epsilon, delta : float
        For one sample more or less, or all that one person gives.
    num_samples : int
        N, of all sites together, as declared.
    per_person : int
        Samples that one person gives at most; 0 where samples are promised, and nothing to persons.
    where : {"sites", "local"}
        Who adds the noise: the sites a share each, or each site as much as all.
    """

    epsilon: float
    delta: float
    num_samples: int
    where: Place = "sites"
    per_person: int = 0

    @property
    def mu(self) -> float:
        """Privacy parameter of all answers of the run together."""
        return mu_of(self.epsilon, self.delta)

    @property
    def sample_mu(self) -> float:
        """Privacy parameter for one sample: k samples move a sum k times as far (Dong et al. 2022, theorem 2.14)."""
        return self.mu / max(self.per_person, 1)

    def enough(self, parties: int) -> int:
        """Return how many of the parties' shares of noise are enough."""
        return least_honest(parties) if self.where == "sites" else 1

    def to_json(self) -> dict[str, object]:
        """Return the entry of results.json."""
        numbers = {"epsilon": self.epsilon, "delta": self.delta, "mu": self.mu, "num_samples": self.num_samples}
        unit = {"unit": "person", "per_person": self.per_person} if self.per_person else {"unit": "sample"}
        return {**numbers, **unit, "noise": PLACES[self.where]}


def _erfcx(value: float) -> float:
    """Return exp(x^2) erfc(x) of x >= 0."""
    if value < _FAR:
        return math.exp(value * value) * math.erfc(value)
    term = total = 1.0
    for number in range(1, 8):
        term *= -(2 * number - 1) / (2 * value * value)
        total += term
    return total / (value * math.sqrt(math.pi))


def _halved(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return neighbours between which a condition that holds at ``low`` ceases to hold."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
