"""A run folder with a head that knows three colours, and pictures of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.heads import CalibrationSums, MarginHistograms, margin_bins, solve_ncm
from fedstats_app.heads.coverage import LabelMargins
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.statistics import FeatureStatistics
from tests.support.flower import free_ports
from tests.support.heads import head_metadata

COLOURS = {"blue": (25, 30, 220), "green": (20, 200, 30), "red": (230, 20, 20)}


def picture(name: str, seed: int) -> Image.Image:
    """Return a noisy picture of a colour."""
    noise = np.random.default_rng(seed).normal(0, 25, (12, 12, 3))
    return Image.fromarray(np.clip(np.array(COLOURS[name]) + noise, 0, 255).astype(np.uint8))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of four pictures per colour, a folder each."""
    root = tmp_path / "pictures"
    for name in COLOURS:
        (root / name).mkdir(parents=True)
        for number in range(4):
            picture(name, number).save(root / name / f"{number}.png")
    return root


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    def make(*, calibrated: bool = True, accuracy: float = 1.0) -> Path:
        backbone = load_backbone("random:tiny", input_size=16, device="cpu")
        images = [picture(name, 100 + number) for name in COLOURS for number in range(10)]
        features, labels = torch.cat(list(backbone.extract(images))), torch.arange(30) // 10
        head = solve_ncm(FeatureStatistics.from_features(features, labels, 3))
        temperature = CalibrationSums.from_logits(head.logits(features), labels).best_temperature()
        margins = MarginHistograms.zeros(3).count_(margin_bins(head.logits(features)), labels).positives
        samples = "30 test samples of the server"
        calibration = {"temperature": str(temperature), "calibrated_on": samples}
        calibration["label-margins"] = LabelMargins(margins.sum(dim=0), margins, samples).to_json()
        run = RunFolder.create(str(tmp_path), 1)
        run.save_head("fedncm", head, head_metadata(backbone, list(COLOURS), **(calibration if calibrated else {})))
        run.write_results({"methods": {"fedncm": {"accuracy": accuracy}}})
        return run.path

    return make


@pytest.fixture
def run_folder(make_run: Callable[..., Path]) -> Path:
    return make_run()


@pytest.fixture
def text_run(tmp_path: Path) -> Path:
    """A run folder with a head of the tiny language model."""
    backbone = load_backbone("random:tiny-text", device="cpu")
    features = torch.cat(list(backbone.extract(["a good film", "it is great", "a bad movie", "terrible"])))
    head = solve_ncm(FeatureStatistics.from_features(features, torch.tensor([1, 1, 0, 0]), 2))
    run = RunFolder.create(str(tmp_path / "text"), 1)
    run.save_head("fedncm", head, head_metadata(backbone, ["bad", "good"], sample_kind="text"))
    run.write_results({"methods": {"fedncm": {"accuracy": 1.0}}})
    return run.path


@pytest.fixture
def unused_ports() -> tuple[int, int]:
    """Two ports that nobody listens on."""
    one, other = free_ports(2)
    return one, other
