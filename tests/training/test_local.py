"""Local training, the batches it goes through, and feature alignment."""

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.training import local
from fedstats_app.training.evaluation import evaluate
from fedstats_app.training.local import Diverged, train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, TensorSamples, batch_order
from fedstats_app.training.training_options import LocalOptions
from tests.support.compare import relative_difference, same_bits
from tests.support.networks import HEAD, make_features, make_images

OPTIONS = LocalOptions(epochs=2, batch_size=8, learning_rate=0.05)
KEY = (0, 4, 1)


def centralised(
    network: nn.Module | None,
    samples: Samples,
    options: LocalOptions,
    keys: list[tuple[int, ...]],
    penalty: Callable[[list[Tensor], Tensor, Tensor], Tensor] = lambda *_: torch.tensor(0.0),
) -> dict[str, Tensor]:
    """Train as anybody would: one model, one torch.optim.SGD, one loop; return its tensors by TunedModel's names."""
    body = nn.Identity() if network is None else copy.deepcopy(network).requires_grad_(True)
    model = nn.Sequential(body, nn.Linear(8, 3))
    model[1].load_state_dict({"weight": HEAD.weight, "bias": HEAD.bias})
    optimizer = torch.optim.SGD(
        model.parameters(), lr=options.learning_rate, momentum=options.momentum, weight_decay=options.weight_decay
    )
    start = [parameter.detach().clone() for parameter in model.parameters()]
    for key in keys:
        for epoch in range(options.epochs):
            for batch in batch_order(len(samples.labels), options.batch_size, key, epoch):
                features, labels = model[0](samples.inputs(batch)), samples.labels[batch]
                moved = [now - then for now, then in zip(model.parameters(), start, strict=True)]
                loss = F.cross_entropy(model[1](features), labels) + penalty(moved, features, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    names = {"0": "backbone", "1": "head"}
    return {f"{names[name[0]]}{name[1:]}": value.detach() for name, value in model.named_parameters()}


def state_after(model: TunedModel, samples: Samples, options: LocalOptions, **further: Any) -> dict[str, Tensor]:
    train_locally(model, samples, options, **{"key": KEY, **further})
    return model.trained_state()


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(same_bits(value, second[name]) for name, value in first.items())


# What it must be equal to


@pytest.mark.parametrize(
    ("options", "num_rounds"),
    [(OPTIONS, 3), (replace(OPTIONS, momentum=0.5, weight_decay=5e-3), 1), (replace(OPTIONS, batch_size=1000), 1)],
)
@pytest.mark.parametrize("tune", ["probe", "full"])
def test_rounds_of_one_client_are_sgd(network: nn.Module, tune: Any, options: LocalOptions, num_rounds: int) -> None:
    backbone = network if tune == "full" else None
    samples = make_images(43) if tune == "full" else make_features(43)
    keys = [(0, 4, number) for number in range(num_rounds)]
    state = TunedModel(HEAD, backbone=backbone, tune=tune).trained_state()
    for key in keys:  # in every round a client that kept nothing
        model = TunedModel(HEAD, backbone=backbone, tune=tune)
        model.load_trained_state(state)
        state = state_after(model, samples, options, key=key)
    assert equal(state, centralised(backbone, samples, options, keys))


def test_a_gpu_sees_few_shapes_of_batches(network: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    states, shapes = [], []
    for devices in ((), ("cpu",)):
        monkeypatch.setattr(local, "_FEW_SHAPES", devices)
        model = TunedModel(HEAD, backbone=network, tune="full")
        assert model.backbone is not None
        seen: list[int] = []
        model.backbone.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(len(inputs[0])))
        for number in (1, 3, 5, 13):
            report = train_locally(model, make_images(number), OPTIONS, key=KEY)
            assert report.num_examples == number
        states.append(model.trained_state())
        shapes.append(seen)
    assert shapes == [[1, 1, 3, 3, 5, 5, 8, 5, 8, 5], [1, 1, 4, 4, 8, 8, 8, 8, 8, 8]]
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor)
    assert len(local.filled(TunedModel(HEAD, tune="probe"), torch.zeros(3, 8), 8)) == 3


def test_the_proximal_term_is_the_gradient_of_the_penalty(network: nn.Module) -> None:
    samples, mu = make_images(40), 5.0

    def penalty(moved: list[Tensor], *_: Tensor) -> Tensor:
        return mu / 2 * torch.stack([offset.square().sum() for offset in moved]).sum()

    expected = centralised(network, samples, OPTIONS, [KEY], penalty)
    with_term = state_after(TunedModel(HEAD, backbone=network, tune="full"), samples, replace(OPTIONS, proximal_mu=mu))
    assert max(relative_difference(with_term[name], expected[name]) for name in expected) < 1e-5
    without = state_after(TunedModel(HEAD, backbone=network, tune="full"), samples, OPTIONS)
    assert min(relative_difference(without[name], expected[name]) for name in expected) > 1e-3


def test_the_extra_loss_sees_features_and_labels_and_is_added(network: nn.Module) -> None:
    samples, prototypes = make_images(40), torch.randn(3, 8, generator=torch.Generator().manual_seed(3))

    def penalty(_: list[Tensor], features: Tensor, labels: Tensor) -> Tensor:
        return 0.7 * (features - prototypes[labels]).square().mean()

    expected = centralised(network, samples, OPTIONS, [KEY], penalty)
    model = TunedModel(HEAD, backbone=network, tune="full")
    made = state_after(model, samples, OPTIONS, extra_loss=lambda *batch: penalty([], *batch))
    assert max(relative_difference(made[name], expected[name]) for name in expected) < 1e-5


def test_only_the_key_decides(network: nn.Module) -> None:
    options = replace(OPTIONS, flip=True)

    def run(key: tuple[int, ...], global_seed: int) -> dict[str, Tensor]:
        torch.manual_seed(global_seed)
        return state_after(TunedModel(HEAD, backbone=network, tune="full"), make_images(40), options, key=key)

    assert equal(run((0, 4, 1), 1), run((0, 4, 1), 2))
    others = [run(key, 1) for key in ((0, 4, 2), (0, 5, 1), (1, 4, 1))]
    assert not any(equal(run((0, 4, 1), 1), other) for other in others)


# What must not move


@pytest.mark.parametrize(
    ("options", "still"),
    [
        ({"tune": "features"}, lambda name: name.startswith("head.") or "running" in name),
        ({"tune": "probe"}, lambda name: name.startswith("backbone.")),
        ({"tune": "full", "tune_bias": False}, lambda name: name == "head.bias" or "running" in name),
    ],
)
def test_what_is_frozen_stays(network: nn.Module, options: dict[str, Any], still: Callable[[str], bool]) -> None:
    model = TunedModel(HEAD, backbone=network, **options)
    before = {name: value.clone() for name, value in model.state_dict().items() if "num_batches" not in name}
    train_locally(model, make_images(41), replace(OPTIONS, weight_decay=0.1), key=KEY)
    moved = {name for name, value in before.items() if not same_bits(value, model.state_dict()[name])}
    assert moved == {name for name in before if not still(name)}


# Flips


def test_about_half_of_the_images_are_flipped_anew_in_each_epoch() -> None:
    seen: list[Tensor] = []

    class Recorder(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            seen.append(images[:, 0, 0].clone())
            return images.new_zeros(len(images), 8)

    # Pixel 0 is the sample's number plus 1, pixel 1 is 0: where pixel 0 is 0 the image was flipped.
    numbers = torch.arange(1, 201, dtype=torch.float32)
    images = torch.stack([numbers, torch.zeros(200)], dim=1).reshape(200, 1, 1, 2)
    samples = TensorSamples(images, torch.zeros(200, dtype=torch.int64))

    def flipped(batch_size: int) -> list[set[float]]:
        seen.clear()
        options = LocalOptions(epochs=2, batch_size=batch_size, flip=True)
        train_locally(TunedModel(HEAD, backbone=Recorder(), tune="full"), samples, options, key=KEY)
        rows = torch.cat(seen)
        assert all(sorted(epoch.sum(dim=1).tolist()) == numbers.tolist() for epoch in rows.split(200))
        return [set(epoch[:, 1][epoch[:, 0] == 0].tolist()) for epoch in rows.split(200)]

    first, second = flipped(64)
    assert 70 < len(first) < 130 and 70 < len(second) < 130 and first != second
    assert flipped(7) == [first, second]


# What is reported


def test_the_report_counts_samples_steps_and_passes(network: nn.Module) -> None:
    for tune, passes in (("full", 3 * 3 * 20), ("features", 3 * 3 * 20), ("probe", 3 * 20), ("cached", 0)):
        cached = tune == "cached"
        model = TunedModel(HEAD, tune="probe") if cached else TunedModel(HEAD, backbone=network, tune=tune)  # type: ignore[arg-type]
        samples = make_features(20) if cached else make_images(20)
        report = train_locally(model, samples, LocalOptions(epochs=3, batch_size=8), key=KEY)
        assert (report.num_examples, report.num_batches, report.forward_passes) == (20, 9, passes)


def test_the_loss_is_the_mean_over_the_samples_of_the_last_epoch() -> None:
    samples = make_features(21)  # the last batch is smaller, and counts for less
    model = TunedModel(HEAD, tune="probe", temperature=0.5)
    before = evaluate(model, samples).loss
    standing = train_locally(model, samples, replace(OPTIONS, learning_rate=1e-12), key=KEY)
    assert standing.loss == pytest.approx(before, rel=1e-6)
    extra = train_locally(
        model, samples, replace(OPTIONS, learning_rate=1e-12), key=KEY, extra_loss=lambda *_: torch.tensor(2.0)
    )
    assert extra.loss == pytest.approx(before + 2, rel=1e-6)


# What goes wrong


def test_a_loss_that_is_not_finite_is_an_error_that_says_where() -> None:
    samples = make_features(40)
    position = int(batch_order(40, 8, KEY, 0)[2][0])
    inputs = samples.inputs(torch.arange(40))
    inputs[position, 0] = torch.nan
    model = TunedModel(HEAD, tune="probe")
    with pytest.raises(Diverged, match="epoch 1 of 2, batch 3 of 5: the loss is nan"):
        train_locally(model, TensorSamples(inputs, samples.labels), OPTIONS, key=KEY)
    assert not model.training


def test_parameters_that_are_not_finite_at_the_end_are_an_error() -> None:
    options = LocalOptions(batch_size=100, learning_rate=1e38)  # one step: the loss before it is finite
    samples = make_features(10)
    scaled = TensorSamples(100 * samples.inputs(torch.arange(10)), samples.labels)
    with pytest.raises(Diverged, match=r"head\.weight is not finite after epoch 1, batch 1"):
        train_locally(TunedModel(HEAD, tune="probe"), scaled, options, key=KEY)


@pytest.mark.parametrize(
    ("labels", "flip", "message"),
    [
        ([0, 1, 3], False, r"labels must lie in \[0, 3\), got"),
        ([0, 1, -100], False, r"labels must lie in \[0, 3\), got"),
        ([], False, "at least one sample"),
        ([0, 1], True, r"only images .* can be flipped, got \(2, 8\)"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(labels: list[int], flip: bool, message: str) -> None:
    samples = TensorSamples(torch.zeros(len(labels), 8), torch.tensor(labels, dtype=torch.int64))
    with pytest.raises(ValueError, match=message):
        train_locally(TunedModel(HEAD, tune="probe"), samples, replace(OPTIONS, flip=flip), key=KEY)


@pytest.mark.parametrize("name", ["epochs", "batch_size", "learning_rate", "momentum", "weight_decay", "proximal_mu"])
def test_options_out_of_range_are_refused(name: str) -> None:
    for value in (-1, float("nan")):
        with pytest.raises(ValueError, match=f"{name} must"):
            LocalOptions(**{name: value})


def test_training_does_not_load_torch_s_compiler() -> None:
    """On a real SuperNode every message is a process of its own: it would pay for what it does not use."""
    program = """
import sys, torch
from fedstats_app.heads import LinearHead
from fedstats_app.training.local import train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.training.samples import TensorSamples
model = TunedModel(LinearHead(torch.zeros(2, 3), torch.zeros(2)), tune="probe")
samples = TensorSamples(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))
print(train_locally(model, samples, LocalOptions(momentum=0.9, weight_decay=0.1), key=(1,)).num_batches)
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["1", "[]"]


words = st.integers(0, 2**63 - 1)


@given(st.integers(0, 300), st.integers(1, 350), st.lists(words, min_size=1, max_size=4), st.integers(0, 50))
def test_an_epoch_has_every_sample_once_in_batches(n: int, batch_size: int, key: list[int], epoch: int) -> None:
    batches = batch_order(n, batch_size, key, epoch)
    assert sorted(position for batch in batches for position in batch.tolist()) == list(range(n))
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert all(0 < len(batch) <= batch_size and batch.dtype == torch.int64 for batch in batches)


@given(st.integers(1, 100), st.lists(words, min_size=1, max_size=4), st.integers(0, 50))
def test_the_order_does_not_depend_on_the_batch_size(n: int, key: list[int], epoch: int) -> None:
    whole = batch_order(n, n, key, epoch)[0]
    assert torch.equal(torch.cat(batch_order(n, 7, key, epoch)), whole)
