"""FedNCM: class means in one round.

Legate et al. 2023, "Guiding the last layer in federated learning with pre-trained models".

Clients send class sums and counts; the head is the row-normalised class means, exact for any split. Deviation from
the reference code: no random bias is kept, and an absent class gives a zero row instead of NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedstats_app.base.option import Options
from fedstats_app.methods.method import Method

if TYPE_CHECKING:
    from fedstats_app.heads import LinearHead
    from fedstats_app.heads.noisy import NoisyStatistics
    from fedstats_app.statistics import FeatureStatistics


class FedNCMMethod(Method[Options]):
    """Class means."""

    name = "fedncm"
    display_name = "FedNCM"
    paper = "Legate et al. 2023"
    takes_noise = True
    takes_targets = frozenset({"labels"})

    def solve(self, inputs: FeatureStatistics) -> LinearHead:
        """Return the row-normalised class means."""
        from fedstats_app.heads import solve_ncm

        return solve_ncm(inputs)

    def solve_targets(self, inputs: FeatureStatistics) -> LinearHead:
        """Return the difference of the means of each label's positive and negative samples."""
        from fedstats_app.heads.targets import solve_target_means

        return solve_target_means(inputs)

    def uplink(self, M: int, K: int, C: int, d: int) -> int:
        """Count class means."""
        return M * d

    def solve_noisy(self, noisy: NoisyStatistics) -> LinearHead:
        """Return noisy class means."""
        return noisy.ncm()
