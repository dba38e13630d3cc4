"""The attackers find what can be found, and the measures of likeness are the usual ones."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from research.benchmarks import inversion
from research.benchmarks.inversion import Decoder, inverted, psnr, ssim
from tests.research.benchmarks.conftest import SETTINGS


def test_gradients_find_an_image_where_features_tell_all() -> None:
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
    found = inverted(lambda one: one.flatten(1), images.flatten(1), (8, 8), steps=150, smoothness=0.0)
    assert float((found - images).abs().max()) < 0.02
    smooth = inverted(lambda one: one.flatten(1), images.flatten(1), (8, 8), steps=150, smoothness=10.0)
    assert float(smooth.diff(dim=3).abs().mean()) < 0.1 * float(images.diff(dim=3).abs().mean())


def test_the_decoder_finds_images_that_are_linear_in_their_features() -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(200, 12, generator=generator)
    images = (0.5 + 0.02 * features @ torch.randn(12, 16, generator=generator)).unflatten(1, (4, 4))
    decoder = Decoder.fit(features[:150], images[:150], ridge=1e-9)
    assert torch.allclose(decoder.decode(features[150:], (4, 4)), images[150:], atol=1e-5)


def test_likeness_is_as_defined() -> None:
    generator = torch.Generator().manual_seed(2)
    one, other = (torch.rand(9, 11, generator=generator, dtype=torch.float64) for _ in range(2))
    assert float(psnr(one, one + 0.1)) == pytest.approx(20.0)
    windows = [
        (one[row : row + 7, column : column + 7].numpy(), other[row : row + 7, column : column + 7].numpy())
        for row in range(3)
        for column in range(5)
    ]
    expected = []
    for first, second in windows:
        covariance = np.cov(first.ravel(), second.ravel())
        product = 2 * first.mean() * second.mean() + 1e-4
        shared = (2 * covariance[0, 1] + 9e-4) / (covariance[0, 0] + covariance[1, 1] + 9e-4)
        expected.append(product / (first.mean() ** 2 + second.mean() ** 2 + 1e-4) * shared)
    assert float(ssim(one[None], other[None])) == pytest.approx(np.mean(expected), rel=1e-9)
    assert float(ssim(one[None], one[None])) == pytest.approx(1.0)


def test_a_run_prints_the_table_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "inversion.png"
    inversion.main(["--settings", SETTINGS, "--steps", "2", "--classes", "2", "--picture", str(picture)])
    *lines, _, _, one, _, _, _ = capsys.readouterr().out.splitlines()
    found = [json.loads(line) for line in lines]
    assert [line["num_samples"] for line in found] == [1, 2, 5, 20]
    # The features of the one sample are the mean.
    assert found[0]["named"] == 1.0 and one.endswith("| 100, 0.25 |")
    assert picture.stat().st_size > 5000
    with pytest.raises(SystemExit):
        inversion.main(["--steps", "0"])
