"""A frozen network at one batch shape: its features, fingerprint, devices and batch size."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.base import threads
from tests.backbones.conftest import features, random_images

_TRANSFORM = ImageTransform(16, (0.5,) * 3, (0.5,) * 3)


class _WithDropout(nn.Module):
    """d = 4; features differ from call to call unless in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.norm(self.conv(images))).mean((2, 3))


def _custom(**options: object) -> Backbone:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = _WithDropout()
    arguments = {"name": "custom", "transform": _TRANSFORM, "weights_source": "a test", "batch_size": 4}
    return Backbone(module=module, **{"device": "cpu", **arguments, **options})


@pytest.fixture(scope="module")
def lite() -> Backbone:
    return load_backbone("efficientnet_lite0", input_size=32, batch_size=4, device="cpu")


@pytest.fixture(scope="module")
def channels_last() -> Backbone:
    return load_backbone("efficientnet_lite0", input_size=32, batch_size=4, device="cpu", channels_last=True)


@pytest.mark.parametrize("layout", ["lite", "channels_last"])
@given(data=st.data())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_features_are_each_image_s_own(layout: str, request: pytest.FixtureRequest, data: st.DataObject) -> None:
    backbone = request.getfixturevalue(layout)
    images = random_images(7)
    expected = features(backbone, images)
    order = data.draw(st.permutations(range(7)))
    cut = data.draw(st.integers(0, 7))
    neighbours = random_images(data.draw(st.integers(0, 3)), seed=1)
    groups = [neighbours + [images[i] for i in order[:cut]], [images[i] for i in order[cut:]]]
    parts = [features(backbone, group) for group in groups if group]
    got = torch.cat(parts)[len(neighbours) :] if groups[0] else torch.cat(parts)
    assert torch.equal(got, expected[torch.tensor(order)])


def test_batches_are_in_order_and_hold_real_rows_only() -> None:
    backbone = _custom()
    images, seen = random_images(10), list[torch.Tensor]()
    hook = backbone.module.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))
    batches = list(backbone.extract(images))
    hook.remove()
    assert [tuple(batch.shape) for batch in batches] == [(4, 4), (4, 4), (2, 4)]
    assert [tuple(batch.shape) for batch in seen] == [(4, 3, 16, 16)] * 3
    assert (seen[2][2:] == 0).all() and (seen[2][:2] != 0).any(), "padded with zeros"
    by_hand = torch.stack([backbone.module(backbone.transform(image)[None])[0] for image in images])
    torch.testing.assert_close(torch.cat(batches), by_hand, rtol=1e-5, atol=1e-6)
    assert list(backbone.extract([])) == []


def test_features_carry_no_gradient_but_may_enter_autograd() -> None:
    backbone = _custom()
    made = features(backbone, random_images(4))
    assert not made.requires_grad and not made.is_inference()
    assert not any(parameter.requires_grad for parameter in backbone.module.parameters())
    head = nn.Linear(4, 2)
    made.matmul(head.weight.T).sum().backward()
    assert head.weight.grad is not None


def test_forward_batch_takes_the_fixed_shape_only() -> None:
    backbone = _custom()
    assert backbone.forward_batch(torch.zeros(4, 3, 16, 16)).shape == (4, 4)
    for wrong in (torch.zeros(3, 3, 16, 16), torch.zeros(4, 3, 16, 17), torch.zeros(4, 3, 16, 16).double()):
        with pytest.raises(ValueError, match=r"custom takes batches \(4, 3, 16, 16\) float32, got"):
            backbone.forward_batch(wrong)


def test_too_little_memory_names_the_key_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = _custom()

    def full(images: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(backbone.module, "forward", full)
    with pytest.raises(torch.OutOfMemoryError, match="too little memory for batches of 4: set batch-size to 2 or less"):
        backbone.forward_batch(torch.zeros(4, *backbone.transform.shapes[0]))


def test_fingerprint_follows_weights_size_and_name_and_not_how_features_are_computed() -> None:
    fingerprint = _custom().fingerprint
    assert len(fingerprint) == 64 and int(fingerprint, 16) >= 0
    half = (0.5,) * 3
    transforms = (ImageTransform(17, half, half), ImageTransform(16, half, half, "bicubic"))
    for other in ({"name": "other"}, *({"transform": one} for one in transforms)):
        assert _custom(**other).fingerprint != fingerprint
    for same_one in ({}, {"batch_size": 9}, {"autocast": "bf16"}, {"channels_last": True}, {"weights_source": "here"}):
        assert _custom(**same_one).fingerprint == fingerprint
    for key, value in _custom().module.state_dict().items():
        changed = _WithDropout()
        changed.load_state_dict(_custom().module.state_dict())
        changed.state_dict()[key].view(-1)[-1:].add_(1)
        same = Backbone("custom", changed, _TRANSFORM, weights_source="", device="cpu").fingerprint == fingerprint
        assert same == (key == "norm.num_batches_tracked"), (key, value.shape)


def test_autocast_gives_float32_features_near_the_exact_ones() -> None:
    images = random_images(4)
    exact, fast = features(_custom(), images), features(_custom(autocast="bf16"), images)
    assert fast.dtype == torch.float32 and not torch.equal(exact, fast)
    torch.testing.assert_close(fast, exact, rtol=0.05, atol=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layout", [False, True])
def test_cuda_agrees_with_cpu(layout: bool, lite: Backbone) -> None:
    images = random_images(10)
    options = {"input_size": 32, "batch_size": 4, "channels_last": layout}
    cuda = load_backbone("efficientnet_lite0", device="cuda", **options)
    got = features(cuda, images)
    assert got.device.type == "cuda" and cuda.fingerprint == lite.fingerprint
    torch.testing.assert_close(got.cpu(), features(lite, images), rtol=1e-3, atol=1e-4)
    assert torch.equal(features(cuda, images[::-1]).flip(0), got)
    half = features(load_backbone("efficientnet_lite0", device="cuda", autocast="fp16", **options), images)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, got, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "auto, cpu, cuda, cuda:N, mps; got 'tpu'"),
        ({"device": "cuda:99"}, "'cuda:99' is not on this machine"),
        ({"autocast": "int8"}, "none, bf16, fp16; got 'int8'"),
        ({"autocast": "fp16"}, "'fp16' is not available on cpu"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"transform": ImageTransform(2, (0.5,) * 3, (0.5,) * 3)}, "custom cannot take images of 2 x 2 pixels"),
    ],
)
def test_options_that_are_not_allowed(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _custom(**options)


def tiny(**options: object) -> Backbone:
    return load_backbone("random:tiny", device="cpu", **options)  # type: ignore[arg-type]


def test_on_a_cpu_it_is_one_number_whatever_the_threads() -> None:
    images = random_images(6)
    made = tiny(batch_size="auto")
    torch.set_num_threads(2)
    assert tiny(batch_size="auto").batch_size == made.batch_size == 4
    torch.set_num_threads(1)
    assert made.computed_by == tiny(batch_size=4).computed_by
    assert torch.equal(torch.cat(list(made.extract(images))), torch.cat(list(tiny(batch_size=4).extract(images))))


def test_small_batches_run_side_by_side_and_features_do_not_depend_on_the_threads(
    lite: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = random_images(14)
    torch.set_num_threads(1)
    alone = features(lite, images)
    compute, both = lite._compute, threading.Barrier(2)

    def together(batch: torch.Tensor) -> torch.Tensor:
        both.wait(60)
        return compute(batch)

    monkeypatch.setattr(lite, "_compute", together)
    torch.set_num_threads(2)
    assert torch.equal(features(lite, images), alone) and torch.get_num_threads() == 2


@pytest.mark.parametrize(("megabytes", "most"), [(1, 1), (3, 2), (1000, 3)])
def test_as_many_small_batches_run_at_once_as_memory_suggests(
    megabytes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four images of 16 pixels a side, 3 KB each, take 344 KB of a quarter of the memory."""
    monkeypatch.setattr(threads, "machine_bytes", lambda: megabytes * 10**6)
    backbone, running, lock = _custom(batch_size=4), [0, 0], threading.Lock()
    images, compute = random_images(48), backbone._compute

    def noted(batch: torch.Tensor) -> torch.Tensor:
        with lock:
            running[:] = running[0] + 1, max(running[1], running[0] + 1)
        assert torch.get_num_threads() == 1
        time.sleep(0.01)  # so long that others begin
        made = compute(batch)
        with lock:
            running[0] -= 1
        return made

    torch.set_num_threads(3)
    expected = features(backbone, images)
    monkeypatch.setattr(backbone, "_compute", noted)
    assert torch.equal(features(backbone, images), expected) and running == [0, most]


def test_a_large_batch_has_all_threads() -> None:
    backbone, threads, found = _custom(batch_size=17), 3, []
    torch.set_num_threads(threads)
    backbone.module.register_forward_pre_hook(lambda module, inputs: found.append(torch.get_num_threads()))
    assert len(features(backbone, random_images(20))) == 20 and found == [threads] * 2


@pytest.mark.parametrize("threads", [1, 2])
def test_an_input_that_cannot_be_made_is_an_error_and_ends_the_threads(threads: int) -> None:
    torch.set_num_threads(threads)

    def inputs() -> Iterator[torch.Tensor]:
        yield from (torch.zeros(3, 16, 16) for _ in range(9))
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(_custom().extract_inputs(inputs()))
    assert torch.get_num_threads() == threads
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fedstats-threads")]
