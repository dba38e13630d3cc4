"""JPEGs decoded at a part of their size: other pixels, so an option, and in the fingerprint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedstats_app.backbones import load_backbone
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.cli import main
from fedstats_app.data import Dataset, load_dataset, to_rgb
from fedstats_app.report.classifier import load
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.option import ConfigError
from tests.support.simulation import simulate


def photographs(root: Path, suffix: str = "jpg") -> Path:
    """Twelve smooth images of two classes, 300 x 200 pixels, in both splits."""
    draw = np.random.default_rng(0)
    for number in range(12):
        for split in ("train", "test"):
            path = root / split / ("cat", "dog")[number % 2] / f"{number}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            cells = draw.integers(0, 256, (8, 12, 3), dtype=np.uint8)
            Image.fromarray(cells).resize((300, 200), Image.Resampling.BICUBIC).save(path)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs(tmp_path_factory.mktemp("photographs"))


def dataset_of(folder: Path) -> Dataset:
    return load_dataset(f"folder:{folder}", "train")


def tiny(jpeg_draft: int) -> Backbone:
    return load_backbone("random:tiny", jpeg_draft=jpeg_draft, batch_size=4, device="cpu")


def features(backbone: Backbone, folder: Path, threads: int = 0) -> torch.Tensor:
    dataset = dataset_of(folder)
    reader = FeatureReader(backbone, read_threads=threads)
    return torch.cat([block for block, _ in reader.blocks(dataset, np.arange(len(dataset)))])


@pytest.mark.parametrize(
    ("side", "size"), [(0, (300, 200)), (101, (300, 200)), (100, (150, 100)), (50, (75, 50)), (25, (38, 25))]
)
def test_so_many_pixels_remain_of_either_side(folder: Path, side: int, size: tuple[int, int]) -> None:
    assert dataset_of(folder).sample(0, side).size == size  # type: ignore[union-attr]


def test_a_turned_photograph_is_turned_and_only_jpegs_are_drafted(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.new("RGB", (300, 200), "red").save(tmp_path / "turned.jpg", exif=exif)
    with Image.open(tmp_path / "turned.jpg") as image:
        assert to_rgb(image, 100).size == (100, 150)
    assert dataset_of(photographs(tmp_path / "png", "png")).sample(0, 25).size == (300, 200)  # type: ignore[union-attr]


def test_the_limit_of_pixels_is_that_of_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300 * 200 - 1)
    with Image.open(next(folder.rglob("*.jpg"))) as image, pytest.raises(Image.DecompressionBombError):
        to_rgb(image, 25)


def test_it_is_in_the_fingerprint_and_its_absence_is_not() -> None:
    prints = [tiny(number).fingerprint for number in (0, 1, 2)]
    assert len(set(prints)) == 3
    assert prints[0] == load_backbone("random:tiny").fingerprint
    assert "draft" not in tiny(0).transform_spec and tiny(2).transform_spec["draft"] == 2


def test_features_are_near_those_of_whole_images_and_the_same_bits_in_threads(folder: Path) -> None:
    whole, drafted = features(tiny(0), folder), features(tiny(2), folder)
    error = torch.linalg.vector_norm(drafted - whole, dim=1) / torch.linalg.vector_norm(whole, dim=1)
    assert 0 < float(error.max()) < 0.05
    assert torch.equal(features(tiny(2), folder, threads=3), drafted)


def test_a_head_reads_files_as_its_training_images_were_read(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulate(
        tmp_path, dataset=f"folder:{folder}", method="fedncm", jpeg_draft=2, partitioner="iid", num_clients=2
    )
    classifier = load(run, "fedncm")
    assert classifier.backbone.transform.draft_side == 32
    paths = sorted((folder / "test").rglob("*.jpg"))
    with Image.open(paths[0]) as image:
        drafted = to_rgb(image, 32)
    with Image.open(paths[0]) as image:
        whole = to_rgb(image)
    assert torch.equal(classifier.scores(paths[:1]), classifier.scores([drafted]))
    assert not torch.equal(classifier.scores([drafted]), classifier.scores([whole]))
    capsys.readouterr()
    assert main(["predict", str(run), str(paths[0]), "--method", "fedncm", "--csv"]) == 0
    assert f"{float(classifier.probabilities([drafted]).max()):.4f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"jpeg_draft": -1}, "jpeg-draft: "),
        ({"jpeg_draft": 2, "backbone": "tiny-text"}, "jpeg-draft: is for images, got 2"),
        ({"jpeg_draft": 2, "training_flips": "both"}, "training-flips: must be none with jpeg-draft 2, got 'both'"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AppConfig.of(**settings)
    with pytest.raises(ValueError, match="they are no JPEGs"):
        load_backbone("random:tiny-text", jpeg_draft=2)
