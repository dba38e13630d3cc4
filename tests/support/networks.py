"""A network of some hundred parameters with everything that matters in training, a head on it, and data for it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedstats_app.heads import LinearHead
from fedstats_app.training.samples import TensorSamples


def small_network() -> nn.Sequential:
    """Images (B, 3, 8, 8) to features (B, 8), with BatchNorm whose statistics are not trivial, and dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        made = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Conv2d(6, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        made(torch.randn(64, 3, 8, 8))  # fills the running statistics
        for layer in (made[1], made[5]):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias, -0.5, 0.5)
    return made.eval().requires_grad_(False)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make().eval()


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


def three_classes() -> LinearHead:
    """Three classes on eight features, float64 as solvers give it."""
    generator = torch.Generator().manual_seed(6)
    weight, bias = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((3, 8), (3,)))
    return LinearHead(weight, bias)


HEAD = three_classes()


def make_images(n: int, seed: int = 0) -> TensorSamples:
    """Return n images (3, 8, 8) of three classes, a little easier to tell apart than noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=generator)
    images = torch.randn(n, 3, 8, 8, generator=generator)
    images[torch.arange(n), labels] += 0.5
    return TensorSamples(images, labels)


def make_features(n: int, seed: int = 0) -> TensorSamples:
    """Return n features (8,) of three classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=generator)
    return TensorSamples(torch.randn(n, 8, generator=generator) + labels[:, None], labels)


def small_transformer() -> nn.Module:
    """A vision transformer of two layers, (B, 3, 16, 16) to features (B, 8), which takes prompts."""
    from torchvision.models import VisionTransformer

    from fedstats_app.backbones.torchvision_models import ClassToken

    sizes = {"image_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
    return seeded(lambda: ClassToken(VisionTransformer(**sizes))).requires_grad_(False)
