from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedstats_app.report.plots.confusion import (
    confusion_figure,
    most_confused_pairs,
    plot_confusion_matrix,
    row_shares,
)
from tests.report.plots.conftest import Check


def _matrix(classes: int, samples: int = 50) -> np.ndarray:
    random = np.random.default_rng(classes)
    shares = 0.7 * np.eye(classes) + 0.3 * random.dirichlet([0.3] * classes, size=classes)
    return np.stack([random.multinomial(samples, row) for row in shares])


def _names(classes: int) -> list[str]:
    return [f"a rather long class name, no. {index}" for index in range(classes)]


@pytest.mark.parametrize("classes", [1, 2, 10, 20, 50, 51, 100, 120, 121, 1203])
def test_every_size_is_readable(classes: int, check_texts: Check) -> None:
    texts = check_texts(confusion_figure(_matrix(classes), _names(classes), "FedCOF on some data"))
    accuracy = 100 * np.trace(_matrix(classes)) / (50 * classes)
    assert any(f"{accuracy:.1f} % of {50 * classes:,} test samples" in text for text in texts)
    assert ("most confused" in texts) == (classes > 50)
    assert ("number of the true class" in texts) == (classes > 120)


def test_cells_hold_per_cent_of_the_true_class(check_texts: Check) -> None:
    matrix = np.array([[3, 1, 0], [0, 0, 0], [1, 998, 1]])
    figure = confusion_figure(matrix, list("abc"), "Title")
    texts = check_texts(figure)
    # The last text of the axes is the subtitle.
    numbers = {(text.get_position(), text.get_text()) for text in figure.axes[0].texts[:-1]}
    assert numbers == {((0, 0), "75"), ((1, 0), "25"), ((1, 2), "100")}
    assert any("grey: no test samples (1)" in text for text in texts)
    assert any("accuracy 0.4 % of 1,004" in text for text in texts)


def test_shares_of_a_class_add_up_to_one_and_of_no_samples_to_nothing() -> None:
    shares = row_shares(np.array([[3, 1], [0, 0]]))
    assert shares[0].tolist() == [0.75, 0.25]
    assert np.isnan(shares[1]).all()


@given(st.integers(1, 8), st.integers(0, 2**32 - 1), st.integers(1, 70))
def test_most_confused_pairs_are_the_largest_errors(classes: int, seed: int, number: int) -> None:
    matrix = np.random.default_rng(seed).integers(0, 4, (classes, classes))
    pairs = most_confused_pairs(matrix, number)
    errors = {(i, j): matrix[i, j] for i in range(classes) for j in range(classes) if i != j and matrix[i, j] > 0}
    assert pairs == sorted(errors, key=lambda pair: (-errors[pair], pair))[:number]


def test_the_side_panel_names_the_worst_pairs_with_their_numbers(check_texts: Check) -> None:
    matrix = 10 * np.eye(60, dtype=np.int64)
    matrix[7, 8] = 1234
    texts = check_texts(confusion_figure(matrix, [f"c{index}" for index in range(60)], "Title"))
    assert "c7 → c8" in texts
    assert "1,234 of 1,244" in texts


def test_many_classes_share_cells(style: None) -> None:
    axes = next(axes for axes in confusion_figure(_matrix(1203), _names(1203), "Title").axes if axes.images)
    shares = axes.images[0].get_array()
    assert shares.shape == (241, 241)
    np.testing.assert_allclose(shares.sum(axis=1), 100)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((2, 3), dtype=np.int64), r"must be \(2, 2\) for 2 class names, not empty, got \(2, 3\)"),
        (np.array([[1, -1], [0, 1]]), "integers of at least 0, got int64 from -1"),
        (np.eye(2), "integers of at least 0, got float64"),
    ],
)
def test_other_matrices_are_refused(tmp_path: Path, matrix: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plot_confusion_matrix(matrix, ["a", "b"], tmp_path / "plot.png", "Title")


def test_no_test_samples_are_said_and_not_divided_by(check_texts: Check) -> None:
    assert "no test samples" in check_texts(confusion_figure(np.zeros((3, 3), dtype=np.int64), list("abc"), "Title"))


def test_a_matrix_of_many_classes_is_written(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).integers(0, 9, (100, 100))
    path = tmp_path / "confusion.png"
    plot_confusion_matrix(counts, [f"class {one}" for one in range(100)], path, "FedNCM on much")
    with Image.open(path) as image:
        width, height = image.size
    assert width > height > 1000
