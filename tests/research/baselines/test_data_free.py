"""Whole networks in one shot, and DENSE and Co-Boosting: against loops written out, and where the answer is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedstats_app.training.model import TunedModel
from fedstats_app.training.training_options import LocalOptions
from research.baselines.data_free import (
    CO_BOOSTING,
    DENSE,
    DataFreeOptions,
    ImageGenerator,
    distilled,
    generator_loss,
    normalised,
)
from research.baselines.whole_networks import small_cnn, trained_networks

SMALL = {"epochs": 2, "steps": 3, "batch": 8, "noise_size": 6, "width": 4}


def network(seed: int = 0) -> TunedModel:
    return small_cnn(3, 1, 8, seed)


def images(number: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.rand(number, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_the_generator_is_that_of_the_papers_codes() -> None:
    made = ImageGenerator(256, 64, 3, 32, np.random.default_rng(0))
    assert sum(one.numel() for one in made.parameters()) == 2_328_899
    found = made(torch.randn(2, 256))
    assert found.shape == (2, 3, 32, 32) and 0.0 <= float(found.min()) <= float(found.max()) <= 1.0
    assert sum(one.numel() for one in small_cnn(10, 1, 28, 0).parameters()) == 29_034


def test_losses_are_those_written_out_sample_by_sample() -> None:
    draw = torch.Generator().manual_seed(0)
    teacher, student = (torch.randn(20, 3, generator=draw) for _ in range(2))
    labels = torch.randint(3, (20,), generator=draw)
    for options in (DENSE, CO_BOOSTING):
        expected = 0.0
        for own, other, label in zip(teacher, student, labels, strict=True):
            chance, temperature = F.softmax(own, dim=0)[label], options.divergence_temperature
            p, q = F.softmax(own / temperature, dim=0), F.softmax(other / temperature, dim=0)
            apart = float((p * (p / q).log()).sum()) * temperature**2
            if options.masked and own.argmax() == other.argmax():
                apart = 0.0
            expected += float(-chance.log() * (1 - chance) ** options.hardness) - apart
        assert float(generator_loss(teacher, student, labels, options)) == pytest.approx(expected / 20, rel=1e-4)


@pytest.mark.parametrize("options", [DENSE, CO_BOOSTING], ids=["dense", "co-boosting"])
def test_the_same_seed_makes_the_same_student_and_draws_nothing_of_torchs_generator(options: DataFreeOptions) -> None:
    networks, before = [network(0), network(1)], torch.get_rng_state()
    states = [one.trained_state() for one in networks]
    runs = []
    for seed in (0, 0, 1):
        epochs: list[int] = []
        student, weights = distilled(
            networks,
            network(9),
            replace(options, **SMALL),
            1,
            8,
            seed=seed,
            after_epoch=lambda epoch, _, epochs=epochs: epochs.append(epoch),  # type: ignore[misc]
        )
        assert epochs == [1, 2] and bool((weights > 0).all())
        runs.append(student.trained_state())
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert not all(torch.equal(runs[0][name], runs[2][name]) for name in runs[0])
    assert torch.equal(before, torch.get_rng_state())
    for one, state in zip(networks, states, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in one.trained_state().items())


def test_a_student_comes_to_answer_as_the_ensemble() -> None:
    inputs, labels = normalised(images(96)), torch.arange(96) % 3
    inputs[labels == 1] += 1.0
    inputs[labels == 2, :, :4] -= 1.0
    (teacher,) = trained_networks(network(), [(inputs, labels)], LocalOptions(epochs=20, batch_size=16))
    options = replace(DENSE, epochs=14, steps=10, batch=32, noise_size=16, width=8, temperature=4.0, learning_rate=0.05)
    start = network(5)

    student, _ = distilled([teacher], start, options, 1, 8)

    with torch.no_grad():
        answers = teacher(inputs).argmax(dim=1)
        before, after = ((one(inputs).argmax(dim=1) == answers).double().mean() for one in (start, student))
    assert float(after) > float(before) + 0.4
