import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedstats_app.report.curve import CurvePoint
from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.plots.write import write_plots

Make = Callable[..., MethodResult]
NOTHING = {"label_counts": None, "confusion_matrices": {}, "curves": {}}
write = functools.partial(write_plots, class_names=["a", "b"], dataset="sample", backbone="random:tiny", **NOTHING)


def test_every_plot_that_there_is_data_for_is_written(tmp_path: Path, make_result: Make) -> None:
    results = [make_result("fedncm"), make_result("fed3r", 0.86, wire_bytes=657_000_000), make_result("fedcgs", None)]
    matrices = {"fedncm": torch.tensor([[3, 1], [0, 4]]), "fed3r": np.array([[4, 0], [0, 4]])}
    paths = write(tmp_path / "plots", results, label_counts=np.array([[3, 0], [1, 5]]), confusion_matrices=matrices)
    assert [path.name for path in paths] == [
        "accuracy-vs-megabytes.png",
        "label-distribution.png",
        "confusion-matrix-fedncm.png",
        "confusion-matrix-fed3r.png",
    ]
    assert sorted(paths) == sorted((tmp_path / "plots").iterdir())
    for path in paths:
        with Image.open(path) as image:
            image.verify()


def test_a_curve_is_drawn_where_its_method_is_shown(tmp_path: Path, make_result: Make) -> None:
    curve = [CurvePoint("0", 0, 0.5), CurvePoint("1", 1_000_000, 0.7), CurvePoint("2", 2_000_000, 0.8)]

    def picture(*methods: str, **curves: list[CurvePoint]) -> bytes:
        write(tmp_path, [make_result(method) for method in methods], curves=curves)
        return (tmp_path / "accuracy-vs-megabytes.png").read_bytes()

    assert picture("fedncm", fedncm=curve) != picture("fedncm")
    assert picture("fedncm", fed3r=curve, fedcof=[]) == picture("fedncm") == picture("fedncm", fedncm=curve[:1])


def test_without_data_there_is_no_plot(tmp_path: Path, make_result: Make) -> None:
    for results in ([], [make_result("fedncm", None)], [make_result("fedncm", wire_bytes=0)]):
        assert not write(tmp_path, results)
    assert not list(tmp_path.iterdir())


def test_data_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"label counts must be \(clients, 3 classes\)"):
        write(tmp_path, [], class_names=["a", "b", "c"], label_counts=np.ones((2, 2), dtype=np.int64))
