"""Scores of heads from sums under masks, in the form in which scores of single clients are added up."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedstats_app.grid.evaluation import Scores
from fedstats_app.heads import HeadScores, LinearHead
from fedstats_app.heads.leave_one_out import LeaveOneOut
from fedstats_app.heads.summed_scores import SummedScores
from fedstats_app.heads.target_scores import TargetScores
from fedstats_app.heads.targets import TargetLeaveOneOut
from fedstats_app.strategies.secure_sums import SecureStatisticsStrategy


def scores_under_masks(
    strategy: SecureStatisticsStrategy,
    heads: Mapping[str, LinearHead],
    left_out: LeaveOneOut | TargetLeaveOneOut | None = None,
) -> Scores:
    """Score heads on samples held out of the sum, or one on those in it; arguments and errors as of the strategy's sum.

    Raises
    ------
    ValueError
        If no clients' scores give the sum.
    """
    numbers, number = strategy.summed_scores(heads, left_out), strategy.num_classes
    if isinstance(left_out, TargetLeaveOneOut):
        targets = {name: TargetScores.from_numbers(own, number) for name, own in numbers.items()}
        return Scores("clients", targets=targets)
    summed = {name: SummedScores.from_numbers(own, number) for name, own in numbers.items()}
    found = {name: own.scores for name, own in summed.items()}
    calibrations = {name: own.calibration for name, own in summed.items()}
    return Scores("clients", found, right=_as_different(found), calibrations=calibrations)


def _as_different(found: Mapping[str, HeadScores]) -> dict[str, Tensor]:
    """Return (n,) bool, which samples each head has right if as many as can be are wrong for one head only.

    Which they are is not known; so the samples tell two heads apart rather too seldom.
    """
    right, begin = dict[str, Tensor](), 0
    for name, scores in found.items():
        number, correct = scores.confusion.num_examples, scores.confusion.num_correct
        right[name] = (torch.arange(number) - begin) % max(number, 1) >= number - correct
        begin += number - correct
    return right
