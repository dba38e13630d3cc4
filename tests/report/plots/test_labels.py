from pathlib import Path

import numpy as np
import pytest

from fedstats_app.report.plots.labels import label_figure, plot_label_distribution
from tests.report.plots.conftest import Check


def _counts(clients: int, classes: int, samples: int = 80) -> np.ndarray:
    random = np.random.default_rng(clients * 1000 + classes)
    return np.stack([random.multinomial(samples, random.dirichlet([0.1] * classes)) for _ in range(clients)])


def _names(classes: int) -> list[str]:
    return [f"a rather long class name, no. {index}" for index in range(classes)]


@pytest.mark.parametrize(
    ("clients", "classes"), [(1, 1), (3, 2), (10, 10), (30, 20), (100, 10), (100, 100), (1000, 10), (1000, 40)]
)
def test_every_size_is_readable(clients: int, classes: int, check_texts: Check) -> None:
    texts = check_texts(label_figure(_counts(clients, classes), _names(classes), "Samples per client and class"))
    assert any(
        text.startswith(f"{clients:,} clients, {80 * clients:,} samples; per client 80 samples") for text in texts
    )
    if classes <= 40:
        assert all(any(text.endswith(f" {index}") for text in texts) for index in range(classes))


@pytest.mark.parametrize("clients", [5, 60])
def test_bars_are_the_counts_stacked(clients: int, style: None) -> None:
    counts = _counts(clients, 4)
    axes = label_figure(counts, list("abcd"), "Title").axes[0]
    lengths, starts = np.zeros_like(counts), counts.cumsum(axis=1) - counts
    assert [bars.get_label() for bars in axes.collections] == list("abcd")
    for index, bars in enumerate(axes.collections):
        for path in bars.get_paths():
            across, along = (1, 0) if clients == 5 else (0, 1)
            low, high = path.vertices.min(axis=0), path.vertices.max(axis=0)
            client = round((low[across] + high[across]) / 2)
            lengths[client, index] = high[along] - low[along]
            assert starts[client, index] == low[along]
    assert np.array_equal(lengths, counts)
    assert (axes.get_xlim() if clients == 5 else axes.get_ylim())[1] >= counts.sum(axis=1).max()


@pytest.mark.parametrize("classes", [10, 20])
def test_classes_have_different_colours(classes: int, style: None) -> None:
    axes = label_figure(_counts(3, classes), _names(classes), "Title").axes[0]
    assert len({tuple(bars.get_facecolor()[0]) for bars in axes.collections}) == classes


def test_the_heat_map_holds_every_sample_and_leaves_none_blank(style: None) -> None:
    counts = _counts(2500, 30)
    (image,) = label_figure(counts, _names(30), "Title").axes[0].images
    shown = image.get_array()
    assert shown.shape == (30, 834)  # three clients a column
    assert shown.sum() == counts.sum()
    assert np.array_equal(shown.filled(0).sum(axis=1), counts.sum(axis=0))
    assert (shown.compressed() > 0).all()


def test_the_heat_map_orders_clients_by_their_most_frequent_class(style: None) -> None:
    counts = _counts(200, 25)
    (image,) = label_figure(counts, _names(25), "Title").axes[0].images
    dominant = image.get_array().filled(0).argmax(axis=0)
    assert (np.diff(dominant) >= 0).all()


def test_a_dollar_in_a_name_is_no_formula(check_texts: Check) -> None:
    names = ["$5 to $10", "$\\frac$"]
    texts = check_texts(label_figure(_counts(3, 2), names, "Costs $ and $$"))
    assert set(names) <= set(texts)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (np.zeros((3, 2), dtype=np.int64), r"must be \(clients, 3 classes\), not empty, got \(3, 2\)"),
        (np.zeros((0, 3), dtype=np.int64), r"not empty, got \(0, 3\)"),
        (np.full((2, 3), -1), "integers of at least 0, got int64 from -1"),
        (np.ones((2, 3)), "integers of at least 0, got float64"),
    ],
)
def test_other_counts_are_refused(tmp_path: Path, counts: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plot_label_distribution(counts, list("abc"), tmp_path / "plot.png")


def test_clients_without_samples_can_be_shown(check_texts: Check) -> None:
    assert check_texts(label_figure(np.zeros((4, 3), dtype=np.int64), list("abc"), "Nothing"))
    assert check_texts(label_figure(np.zeros((200, 3), dtype=np.int64), list("abc"), "Nothing"))
