"""Recovery of images from the mean of the features of 1, 2, 5 and 20 samples, which clients send.

    python -m research.benchmarks.inversion --picture research/images/inversion.png

For every class of the built-in sample and every number of samples two attackers know the network and the mean. One has
no data: it looks for an image whose features have that mean, by Adam on |f(x) - mu|^2 / |mu|^2 + total variation, from
a grey image. The other has 4,000 images of the same kind, and so a linear decoder from features to pixels, by ridge
regression. What they find is compared with the sample that is most like it, by peak signal-to-noise ratio and
structural similarity; and so is the mean of the class's images among those 4,000, which reveals nothing.
A third attacker has 400 images of the class and picks the one whose features are nearest to the mean: is it one of the
samples?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.data import Dataset
from fedstats_app.data.clients import training_set
from fedstats_app.settings.app_config import AppConfig
from research.benchmarks.features import config_of, features_of
from research.benchmarks.lines import parser_of, printed

SAMPLES = (1, 2, 5, 20)
STEPS, RATE, SMOOTHNESS = 200, 0.1, 1.0
# The decoder's ridge, over the mean of the eigenvalues.
RIDGE = 0.1
# Images of a class that may be a client's; the rest are the attackers'.
CANDIDATES = 400
_WINDOW = 7


@dataclass(frozen=True)
class Likeness:
    """Similarity of images to the most similar sample of each, in the mean over classes.

    Attributes
    ----------
    psnr : float
        Peak signal-to-noise ratio in decibels.
    ssim : float
        Structural similarity, at most 1.
    """

    psnr: float
    ssim: float


@dataclass(frozen=True)
class Recovered:
    """Results for all classes at one number of samples.

    Attributes
    ----------
    num_samples : int
        Behind each mean.
    distance : float
        Mean of |f(x) - mu| / |mu| at the end of the search by gradients.
    gradients, decoder, mean_image : Likeness
        Of what each found, and of the mean image.
    named : float
        Share of the classes in which the candidate whose features are nearest to the mean is one of the samples.
    chance : float
        The same for a guess.
    """

    num_samples: int
    distance: float
    gradients: Likeness
    decoder: Likeness
    mean_image: Likeness
    named: float
    chance: float


def inverted(
    features: Callable[[Tensor], Tensor], means: Tensor, shape: tuple[int, int], *, steps: int, smoothness: float
) -> Tensor:
    """Return images whose features come near to given ones.

    Parameters
    ----------
    features : callable
        From images (b, 1, h, w) in [0, 1] to features (b, d), differentiable.
    means : Tensor
        (b, d).
    shape : tuple of int
        h and w.
    steps : int
        Of Adam.
    smoothness : float
        Weight of the total variation per pixel.

    Returns
    -------
    Tensor
        (b, 1, h, w) in (0, 1).
    """
    raw = torch.zeros(len(means), 1, *shape, requires_grad=True)
    optimizer = torch.optim.Adam([raw], lr=RATE)
    energy = means.square().sum(dim=1)
    for _ in range(steps):
        optimizer.zero_grad()
        images = raw.sigmoid()
        apart = ((features(images) - means).square().sum(dim=1) / energy).sum()
        variation = images.diff(dim=2).abs().mean(dim=(1, 2, 3)) + images.diff(dim=3).abs().mean(dim=(1, 2, 3))
        (apart + smoothness * variation.sum()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return raw.detach().sigmoid()


def psnr(images: Tensor, others: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio in decibels of images in [0, 1], (..., h, w) to (...)."""
    return -10 * (images - others).square().mean(dim=(-2, -1)).clamp(min=1e-10).log10()


def ssim(images: Tensor, others: Tensor) -> Tensor:
    """Return the structural similarity of images in [0, 1], (n, h, w) each, to (n,), in uniform windows of 7 x 7.

    Wang et al. 2004, "Image quality assessment: from error visibility to structural similarity".
    """

    def local(values: Tensor) -> Tensor:
        return F.avg_pool2d(values.unsqueeze(1), _WINDOW, stride=1)

    first, second = local(images), local(others)
    unbiased = _WINDOW**2 / (_WINDOW**2 - 1)
    variances = unbiased * (local(images.square()) - first.square() + local(others.square()) - second.square())
    covariance = unbiased * (local(images * others) - first * second)
    small, small_square = 0.01**2, 0.03**2
    found = (2 * first * second + small) * (2 * covariance + small_square)
    return (found / ((first.square() + second.square() + small) * (variances + small_square))).mean(dim=(1, 2, 3))


@dataclass(frozen=True)
class Decoder:
    """pixels = (features - feature_mean) W + pixel_mean, cut to [0, 1].

    Attributes
    ----------
    weight : Tensor
        (d, h w) float64.
    feature_mean, pixel_mean : Tensor
        (d,) and (h w,).
    """

    weight: Tensor
    feature_mean: Tensor
    pixel_mean: Tensor

    @classmethod
    def fit(cls, features: Tensor, images: Tensor, ridge: float = RIDGE) -> Decoder:
        """Fit to features (n, d) and images (n, h, w) by ridge regression."""
        pixels, features = images.flatten(1).double(), features.double()
        feature_mean, pixel_mean = features.mean(dim=0), pixels.mean(dim=0)
        centred = features - feature_mean
        gram = centred.T @ centred
        gram.diagonal().add_(ridge * gram.diagonal().mean())
        return cls(torch.linalg.solve(gram, centred.T @ (pixels - pixel_mean)), feature_mean, pixel_mean)

    def decode(self, features: Tensor, shape: tuple[int, int]) -> Tensor:
        """Return images (b, h, w) of features (b, d)."""
        pixels = (features.double() - self.feature_mean) @ self.weight + self.pixel_mean
        return pixels.clamp(0, 1).float().reshape(-1, *shape)


def grey_images(dataset: Dataset) -> Tensor:
    """Return all images as grey (n, h, w) in [0, 1]."""
    samples = (dataset.sample(position) for position in range(len(dataset)))
    return (
        torch.from_numpy(np.stack([np.asarray(image.convert("L")) for image in samples if not isinstance(image, str)]))
        / 255
    )


def measure(config: AppConfig, *, steps: int, num_classes: int) -> tuple[list[Recovered], dict[str, Tensor]]:
    """Return the measurements, and for the picture images (classes, h, w) by what they show."""
    data, images = features_of(config), grey_images(training_set(config.data))
    of_class = [torch.nonzero(data.train_labels == class_id)[:, 0] for class_id in range(num_classes)]
    candidates = [positions[:CANDIDATES] for positions in of_class]
    public = torch.ones(len(images), dtype=torch.bool)
    public[torch.cat(candidates)] = False
    decoder = Decoder.fit(data.train[public], images[public])
    mean_image = torch.stack([images[positions[CANDIDATES:]].mean(dim=0) for positions in of_class])
    features, shape = _differentiable(config), (int(images.shape[1]), int(images.shape[2]))
    shown = {"a sample": torch.stack([images[positions[0]] for positions in of_class])}
    decoded: dict[str, Tensor] = {}
    lines = []
    for number in SAMPLES:
        means = torch.stack([data.train[positions[:number]].mean(dim=0) for positions in candidates])
        samples = [images[positions[:number]] for positions in candidates]
        searched = inverted(features, means, shape, steps=steps, smoothness=SMOOTHNESS)
        with torch.no_grad():
            apart = (features(searched) - means).norm(dim=1) / means.norm(dim=1)
        shown[f"gradients, mean of {number}"] = searched[:, 0]
        decoded[f"decoder, mean of {number}"] = decoder.decode(means, shape)
        pairs = zip(means, candidates, strict=True)
        nearest = [int((data.train[positions] - mean).norm(dim=1).argmin()) for mean, positions in pairs]
        lines.append(
            Recovered(
                number,
                float(apart.mean()),
                _likeness(searched[:, 0], samples),
                _likeness(decoded[f"decoder, mean of {number}"], samples),
                _likeness(mean_image, samples),
                named=float(np.mean([position < number for position in nearest])),
                chance=number / CANDIDATES,
            )
        )
    return lines, {**shown, **decoded, "mean image": mean_image}


def _differentiable(config: AppConfig) -> Callable[[Tensor], Tensor]:
    """Return the backbone from grey images (b, 1, h, w) in [0, 1] to features (b, d), with its transform."""
    backbone = loaded_backbone(config.backbone_for(own_data=False))
    side, spec = backbone.input_size, backbone.transform.spec
    centre, scale = (torch.tensor(spec[name]).reshape(3, 1, 1) for name in ("mean", "std"))

    def features(images: Tensor) -> Tensor:
        resized = F.interpolate(images, (side, side), mode="bilinear", align_corners=False)
        given = (resized.expand(-1, 3, -1, -1) - centre) / scale
        found: Tensor = backbone.module(given.to(backbone.device)).to(images.device)
        return found

    return features


def _likeness(images: Tensor, samples: Sequence[Tensor]) -> Likeness:
    def best(quality: Callable[[Tensor, Tensor], Tensor]) -> float:
        pairs = zip(images, samples, strict=True)
        return float(np.mean([float(quality(image.expand_as(own), own).max()) for image, own in pairs]))

    return Likeness(best(psnr), best(ssim))


def table(lines: Sequence[Recovered]) -> str:
    """Return a Markdown table."""
    written = [
        "| samples in the mean | gradients: distance, PSNR, SSIM | decoder: PSNR, SSIM | mean image: PSNR, SSIM | "
        "named (%), chance |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    written += [
        f"| {line.num_samples} | {line.distance:.2f}, {_quality(line.gradients)} | {_quality(line.decoder)} | "
        f"{_quality(line.mean_image)} | {100 * line.named:.0f}, {100 * line.chance:.2f} |"
        for line in lines
    ]
    return "\n".join(written)


def _quality(likeness: Likeness) -> str:
    return f"{likeness.psnr:.1f}, {likeness.ssim:.2f}"


def draw(shown: dict[str, Tensor], path: Path) -> None:
    """Draw a row for each kind of image and a column for each class, as a grey PNG file with twice the pixels."""
    cell, room, font = 2 * next(iter(shown.values())).shape[-1] + 4, 170, ImageFont.load_default(13)
    sheet = Image.new("L", (room + cell * len(next(iter(shown.values()))), cell * len(shown)), 255)
    write = ImageDraw.Draw(sheet)
    for row, (name, images) in enumerate(shown.items()):
        write.text((room - 8, row * cell + cell // 2), name, fill=0, font=font, anchor="rm")
        for column, image in enumerate((255 * images).round().byte().numpy()):
            picture = Image.fromarray(image).resize((cell - 4, cell - 4), Image.Resampling.NEAREST)
            sheet.paste(picture, (room + column * cell, row * cell + 2))
    sheet.save(path, optimize=True)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--settings", default="dataset=builtin", help="run-config keys of the network")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--picture", type=Path, help="PNG file to write")
    options = parser.parse_args(arguments)
    if options.steps < 1 or not 1 <= options.classes <= 10:
        parser.error("--steps must be at least 1 and --classes between 1 and 10")
    lines, shown = measure(config_of(options.settings), steps=options.steps, num_classes=options.classes)
    print(table(printed(lines)))
    if options.picture is not None:
        draw(shown, options.picture)


if __name__ == "__main__":
    main()
