"""Prompts that match become one, and a sample's own prompts are those of the pool that are nearest to it."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedstats_app.training.model import TunedModel
from fedstats_app.training.training_options import LocalOptions
from tests.support.compare import same_bits
from tests.support.networks import HEAD, numbers, small_network
from tests.support.networks import small_transformer as plain_transformer

pytest.importorskip("scipy", reason="comes with the extra `sklearn`")

from research.baselines.pfpt import (
    Generation,
    PromptPool,
    best_origins,
    matched_prompts,
    pool_model,
    pool_of,
    tune_by_matching,
)
from research.baselines.prompts import Prompted, initial_prompts, taking_prompts

KEY = (3, 1)
PROMPTS = 2 * numbers(6, 8)
ADAM = LocalOptions(batch_size=8, learning_rate=0.01)


def small_transformer() -> torch.nn.Module:
    return taking_prompts(plain_transformer())


def permuted(number: int) -> dict[int, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {client: PROMPTS[torch.randperm(len(PROMPTS), generator=generator)] for client in range(number)}


def images(number: int, first: int = 0) -> tuple[Tensor, Tensor]:
    return numbers(60, 3, 16, 16)[first : first + number], torch.arange(number) % 3


def pool(number: int = 7, tokens: int = 3) -> TunedModel:
    return pool_model(HEAD, small_transformer(), initial_prompts(small_transformer(), number, 5), tokens)


def test_copies_in_any_order_are_the_prompts_themselves() -> None:
    found = matched_prompts(permuted(4), KEY)
    assert found.shape == PROMPTS.shape and found.dtype == PROMPTS.dtype
    nearest = torch.cdist(PROMPTS, found)
    assert nearest.argmin(dim=1).unique().numel() == len(PROMPTS)
    assert float(nearest.amin(dim=1).max()) < 0.01  # of prompts 5 long: what Adam at 1e-3 leaves
    assert float(torch.cdist(PROMPTS, torch.stack([*permuted(4).values()]).mean(dim=0)).amin(dim=1).min()) > 1.0


def test_a_matching_is_the_best_of_all() -> None:
    """Each row has one column, no column two rows, and no other choice has a larger sum."""
    for rows, columns in ((1, 1), (2, 3), (3, 3), (3, 5), (4, 4)):
        weights = numbers(rows, columns)
        origins = best_origins(weights)
        assert origins.shape == (rows,) and origins.unique().numel() == rows and 0 <= int(origins.min())
        sums = [float(weights[range(rows), list(one)].sum()) for one in itertools.permutations(range(columns), rows)]
        assert float(weights[range(rows), origins].sum()) == pytest.approx(max(sums))


def densities(generation: Generation, local: Tensor) -> Tensor:
    normal = torch.distributions.Normal(generation.prompts, (generation.log_variances() / 2).exp())
    return normal.log_prob(local.unsqueeze(1)).sum(dim=2)


def test_weights_and_likelihood_are_those_of_the_model() -> None:
    generation, local = Generation.start(PROMPTS.double(), KEY), PROMPTS[:3].double() + 0.1
    coins, own = generation.log_odds().sigmoid(), densities(generation, local)
    torch.testing.assert_close(generation.weights(local), own + (coins / (1 - coins)).log())
    origins = torch.tensor([5, 0, 2])
    used = torch.zeros(6).index_fill(0, origins, 1.0).bool()
    expected = own[range(3), origins].sum() + coins[used].log().sum() + (1 - coins[~used]).log().sum()
    torch.testing.assert_close(generation.log_likelihood(local, origins, 1), expected)
    assert float(generation.log_variances().max()) < 0.0


def test_a_matching_is_of_the_key_and_of_no_order() -> None:
    sent = {client: one + 0.3 * numbers(4, 6, 8)[client] for client, one in permuted(4).items()}
    found, state = matched_prompts(sent, KEY), torch.random.get_rng_state()
    torch.manual_seed(9)
    assert same_bits(found, matched_prompts({**dict(reversed([*sent.items()])), 9: torch.zeros(0, 8)}, KEY))
    torch.random.set_rng_state(state)
    assert not torch.equal(found[:6], matched_prompts(sent, (3, 2))[:6])


def test_each_sample_has_the_prompts_nearest_to_it_whatever_the_batch() -> None:
    model, (inputs, _) = pool(), images(9)
    own, network = pool_of(model), small_transformer()
    with torch.no_grad():
        together = own(inputs)
        for row in range(9):
            cosines = F.cosine_similarity(network(inputs[row : row + 1]), own.prompts)
            plain = Prompted(network, own.prompts.detach()[cosines.topk(3).indices])
            torch.testing.assert_close(plain(inputs[row : row + 1]), together[row : row + 1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(own(inputs[:1]), together[:1], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="tokens must lie in 1 to the 7 prompts of the pool, got 8"):
        PromptPool(network, own.prompts.detach(), 8)
    with pytest.raises(TypeError, match="the model must have a pool of prompts, got Sequential"):
        pool_of(TunedModel(HEAD, backbone=small_network(), tune="full"))


def test_the_pool_changes_its_size_and_never_has_fewer_than_a_sample_takes() -> None:
    model, sizes = pool(), [7]
    none = (torch.zeros(0, 3, 16, 16), torch.zeros(0, dtype=torch.int64))
    clients = [images(8), images(8, 16), images(5, 32)]
    options = replace(ADAM, epochs=2, learning_rate=0.1)

    def noted() -> None:
        sizes.append(len(pool_of(model).prompts))

    tune_by_matching(model, [*clients, none], options, num_rounds=2, seed=2, after_round=noted)
    assert len(set(sizes)) > 1 and min(sizes) >= 3
    again = pool()
    tune_by_matching(again, clients, options, num_rounds=2, seed=2)
    assert list(again.trained_state()) == ["backbone.prompts", "head.weight"]  # what travels
    for name, value in again.trained_state().items():
        assert same_bits(value, model.trained_state()[name]), name
