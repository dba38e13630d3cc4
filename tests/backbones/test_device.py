"""Batches of automatic size."""

from __future__ import annotations

import pytest
import torch

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.device import automatic_batch_size
from fedstats_app.backbones.registry import load_backbone
from tests.backbones.conftest import random_images


def tiny(**options: object) -> Backbone:
    return load_backbone("random:tiny", device="cpu", **options)  # type: ignore[arg-type]


def test_on_a_cpu_it_is_one_number_whatever_the_threads() -> None:
    images = random_images(6)
    made, threads = tiny(batch_size="auto"), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert tiny(batch_size="auto").batch_size == made.batch_size == 4
    finally:
        torch.set_num_threads(threads)
    assert made.computed_by == tiny(batch_size=4).computed_by
    assert torch.equal(torch.cat(list(made.extract(images))), torch.cat(list(tiny(batch_size=4).extract(images))))


@pytest.mark.parametrize(("room", "size"), [(1000, 256), (100, 64), (64, 64), (1, 1)])
def test_on_a_gpu_it_is_halved_until_it_fits(room: int, size: int) -> None:
    tried: list[int] = []

    def run(number: int) -> None:
        tried.append(number)
        if number > room:
            raise torch.OutOfMemoryError("CUDA out of memory")

    assert automatic_batch_size("cuda", "image", run) == size
    assert tried == sorted(tried, reverse=True) and tried[0] == 256


def test_a_backbone_tries_its_own_network(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny(batch_size="auto")
    forward = backbone.module.forward

    def small(images: torch.Tensor) -> torch.Tensor:
        if len(images) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.as_tensor(forward(images))

    monkeypatch.setattr(backbone.module, "forward", small)
    monkeypatch.setattr(
        "fedstats_app.backbones.backbone.automatic_batch_size",
        lambda device, kind, run: automatic_batch_size("cuda", kind, run),
    )
    assert backbone.batch_size == 32
    assert [len(block) for block in backbone.extract(random_images(33))] == [32, 1]
