"""The files of the plots: pictures of a known size, the same bytes for the same data, and others for others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedstats_app.report.plots.accuracy import CostPoint, plot_accuracy_vs_megabytes
from fedstats_app.report.plots.confusion import plot_confusion_matrix
from fedstats_app.report.plots.fine_tuning import plot_training
from fedstats_app.report.plots.labels import plot_label_distribution
from fedstats_app.report.plots.personal import plot_personal_accuracies
from tests.support.trainings import make_training

POINTS = [CostPoint("FedNCM", 1.7, 0.751), CostPoint("Fed3R", 657.0, 0.862), CostPoint("FedCOF", 1.7, 0.834)]
NAMES = [f"a rather long class name, no. {index}" for index in range(10)]
MATRIX = np.random.default_rng(0).integers(0, 50, (10, 10))
COUNTS = np.random.default_rng(1).integers(0, 50, (40, 3))
ACCURACIES = {"global head, Fed3R": [0.5, 0.7, 0.9], "FedProto": [0.4, 1.0], "one": [0.3]}
TRAININGS = [make_training(start, [0.1, 0.7, 0.8]) for start in ("random", "fedncm", "fedcof")]


@pytest.mark.parametrize(
    ("plot", "data", "other", "width", "height"),
    [
        (plot_accuracy_vs_megabytes, POINTS, [*POINTS[:2], CostPoint("FedCOF", 1.7, 0.8)], 1125, 750),
        (lambda data, path, title: plot_confusion_matrix(data, NAMES, path, title), MATRIX, MATRIX.T, 1170, 1080),
        (lambda data, path, _: plot_label_distribution(data, NAMES[:3], path), COUNTS, COUNTS[::-1], 1650, 720),
        (plot_personal_accuracies, ACCURACIES, {**ACCURACIES, "one": [0.4]}, 1200, 429),
        (plot_training, TRAININGS, TRAININGS[:2], 1650, 660),
    ],
    ids=["accuracy", "confusion", "labels", "personal", "training"],
)
def test_a_file_shows_its_data_and_is_the_same_again(
    tmp_path: Path, plot: Callable[..., None], data: Any, other: Any, width: int, height: int
) -> None:
    pictures = []
    for values in (data, data, other):
        plot(values, tmp_path / "plot.png", "Title")
        pictures.append((tmp_path / "plot.png").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]
    with Image.open(tmp_path / "plot.png") as image:
        assert (image.format, *image.size) == ("PNG", width, height)
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 20
