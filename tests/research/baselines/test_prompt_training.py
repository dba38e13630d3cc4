"""Prompt tuning of one client, and what it sends."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.heads import LinearHead
from fedstats_app.report.training_record import training_bytes
from fedstats_app.training.local import train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples, batch_order
from fedstats_app.training.training_options import LocalOptions
from research.baselines.prompts import initial_prompts, prompt_adam, prompt_model, taking_prompts
from tests.support.compare import same_bits
from tests.support.golden import published_costs
from tests.support.networks import HEAD, numbers
from tests.support.networks import small_transformer as plain_transformer

ADAM = LocalOptions(epochs=2, batch_size=8, learning_rate=0.01)
KEY = (7, 0, 1)


def images(number: int = 27) -> TensorSamples:
    return TensorSamples(numbers(number, 3, 16, 16), torch.arange(number) % 3)


def small_transformer() -> nn.Module:
    return taking_prompts(plain_transformer())


def model() -> TunedModel:
    return prompt_model(HEAD, small_transformer(), initial_prompts(small_transformer(), 4, 7))


def after(options: LocalOptions) -> dict[str, Tensor]:
    trained = model()
    train_locally(trained, images(), options, key=KEY, optimizer=prompt_adam)
    return trained.trained_state()


@pytest.mark.parametrize("options", [ADAM, replace(ADAM, weight_decay=0.1)])
def test_one_client_is_centralised_prompt_tuning_bit_for_bit(options: LocalOptions) -> None:
    network, samples = small_transformer(), images()
    prompts, weight, bias = (
        nn.Parameter(value.float().clone()) for value in (initial_prompts(network, 4, 7), HEAD.weight, HEAD.bias)
    )
    how = {"lr": options.learning_rate, "weight_decay": options.weight_decay}
    optimizer = torch.optim.Adam([prompts, weight], betas=(0.9, 0.98), eps=1e-6, **how)  # type: ignore[arg-type]
    for epoch in range(options.epochs):
        for batch in batch_order(len(samples.labels), options.batch_size, KEY, epoch):
            optimizer.zero_grad()
            logits = F.linear(network(samples.inputs(batch), prompts), weight, bias)
            F.cross_entropy(logits, samples.labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    made = after(options)
    assert list(made) == ["backbone.prompts", "head.weight"]  # and nothing else is sent
    assert same_bits(made["backbone.prompts"], prompts.detach()) and same_bits(made["head.weight"], weight.detach())
    assert not torch.equal(made["backbone.prompts"], initial_prompts(network, 4, 7))


class Wide(nn.Module):
    """Takes the prompts of ViT-B/32."""

    prompt_sizes = 3 * 32 * 32, 768


@pytest.mark.parametrize(
    ("name", "classes", "megabytes"),
    [("CIFAR-100", 100, 884.736), ("ImageNet-R", 200, 1622.016), ("CUB200", 200, 1622.016), ("Cars", 196, 1592.5248)],
)
def test_the_bytes_of_the_paper_are_those_of_what_is_trained(name: str, classes: int, megabytes: float) -> None:
    """FedCOF, appendix H: 2 (dC + Pd) T s numbers of four bytes, with a pool of P = 20, T = 120 and s = 10."""
    head = LinearHead(torch.zeros(classes, 768), torch.zeros(classes))
    trained = prompt_model(head, Wide(), initial_prompts(Wide(), 20, 0))
    sent = training_bytes(120, 10, sum(value.numel() for value in trained.trained_state().values()))
    [row] = [one for one in published_costs() if (one["what"], one["dataset"]) == ("FedAvg-PT", name)]
    assert sent / 1e6 == megabytes == float(row["computed_MB"])
