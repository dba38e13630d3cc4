"""FedNCM's head: the golden federations, the authors' heads, and the same bits from rows and from sums."""

import numpy as np
import torch

from fedstats_app.heads import solve_ncm
from tests.support.compare import absolute_difference
from tests.support.golden import Federation


def test_golden_head_from_sums_and_from_rows(federation: Federation) -> None:
    head = solve_ncm(federation.statistics())
    assert absolute_difference(head.weight, federation["ncm_W"]) <= 1e-12
    assert absolute_difference(head.bias, np.zeros(federation.num_classes)) == 0.0
    assert head.present.tolist() == (federation["N_c"] > 0).tolist()
    assert absolute_difference(solve_ncm(federation.rows().summed()).weight, federation["ncm_W"]) <= 1e-12


def test_the_authors_heads_are_ours(federation: Federation) -> None:
    weight = solve_ncm(federation.statistics()).weight
    present = federation["N_c"] > 0
    assert absolute_difference(weight, federation["ref_ncm_W_f64"]) <= 1e-12
    assert absolute_difference(weight, federation["ref_ncm_W_f32"]) <= 1e-6
    # The FedNCM repository gives NaN for an absent class; a head of ours never has one.
    assert absolute_difference(weight[torch.from_numpy(present)], federation["ref_ncmleg_W_f32"][present]) <= 1e-6
    assert bool(torch.isfinite(weight).all())
