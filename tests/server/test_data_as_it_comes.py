"""Data as they are downloaded, through the whole app: what a run says of them, and what nodes do not say."""

from pathlib import Path

import pytest

from fedstats_app.data import DatasetError
from tests.support.simulation import clients, nodes_of, read_json, simulate, site_folder

CLASSES = ("red", "green")


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    said = [line.removeprefix("[fedstats] ") for line in capsys.readouterr().out.splitlines()]
    return [line for line in said if line.startswith(("data:", "all nodes"))]


def test_a_run_says_what_it_found_before_any_feature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "flowers"
    site_folder(root / "archive" / "Training", CLASSES, seed=0, images=30)
    site_folder(root / "archive" / "valid", CLASSES, seed=1, images=5)
    folder = simulate(tmp_path, dataset=f"folder:{root}", num_clients=3, partitioner="iid", method="fedncm")
    assert read_json(folder, "config.json")["class_names"] == sorted(CLASSES)
    assert lines_of(capsys) == [
        "data: 60 images of 2 classes (green, red); test split: 10 images",
        "data: the splits are those of archive",
        "data: valid is used as the test split: there is no other",
        "data: images of only 16 pixels on a side, in which networks see little",
        "data: iid makes 3 sites of 20 images each",
    ]


def test_a_single_class_is_one_error_before_the_network_is_loaded(tmp_path: Path) -> None:
    root = site_folder(tmp_path / "flowers", ("red",), seed=0)
    with pytest.raises(DatasetError, match="8 images are of one class, 'red'; a classifier needs two"):
        simulate(tmp_path, dataset=f"folder:{root}", num_clients=2, backbone="resnet50")
    [status] = (tmp_path / "runs").glob("*/status.json")
    assert "a classifier needs two" in status.read_text()


def test_names_that_look_the_same_are_an_error_of_the_data(tmp_path: Path) -> None:
    root = site_folder(tmp_path / "flowers", ("e\u0301", "\xe9"), seed=0)
    with pytest.raises(ValueError, match=r"^dataset: its classes .* differ only in spaces, Unicode form"):
        simulate(tmp_path, dataset=f"folder:{root}", num_clients=2)


def test_without_a_single_sample_no_head_is_made(tmp_path: Path) -> None:
    root = site_folder(tmp_path / "flowers", CLASSES, seed=0)
    with pytest.raises(ValueError, match="no site sent a sample: every class has fewer samples there than min-class"):
        simulate(tmp_path, dataset=f"folder:{root}", num_clients=2, min_class_count=99, method="fedncm")


def test_splits_of_a_site_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    configs = nodes_of(tmp_path, "ab", CLASSES)
    for number, name in enumerate("cd"):
        site_folder(tmp_path / name / "Zyxwv" / "Training", CLASSES, seed=number)
        site_folder(tmp_path / name / "Zyxwv" / "Testing", CLASSES, seed=number + 9)
        configs.append({"data-path": str(tmp_path / name)})
    folder = simulate(tmp_path, node_configs=configs, method="fedncm")
    assert read_json(folder, "config.json")["class_names"] == sorted(CLASSES)
    assert lines_of(capsys) == ["all nodes together have 2 classes (green, red)"]
    written = "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())
    assert "Zyxwv" not in written and "the splits are those of Zyxwv" in caplog.text


def test_domains_of_a_site_are_asked_about_on_the_site_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    configs = nodes_of(tmp_path, "ab", CLASSES)
    for name in ("Zyxwv one", "Zyxwv two"):
        site_folder(tmp_path / "c" / name, CLASSES, seed=3)
    unclear = {"data-path": str(tmp_path / "c")}
    clear = {**unclear, "folder-levels": "domain/class"}
    folder = simulate(tmp_path, node_configs=[*configs, unclear], method="fedncm", wait_timeout=1.0)
    assert len(clients(folder)) == 2 and "folder-levels = 'domain/class'" in caplog.text
    assert "Zyxwv" not in "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())
    folder = simulate(tmp_path, node_configs=[*configs, clear], method="fedncm")
    assert read_json(folder, "config.json")["class_names"] == sorted(CLASSES)


def test_natural_clients_are_counted_by_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, domain in enumerate(("art", "photo", "sketch", "video")):
        site_folder(tmp_path / "d" / domain, CLASSES, seed=seed, images=12)
    natural = {"partitioner": "natural-id", "partition_column": "domain", "num_clients": 0, "method": "fedncm"}
    folder = simulate(tmp_path, dataset=f"folder:{tmp_path / 'd'}", folder_levels="domain/class", nodes=3, **natural)
    assert len(clients(folder)) == 4
    assert lines_of(capsys)[-1] == ("data: natural-id of art, photo, sketch, video makes 4 sites of 24 images each")
    assert read_json(folder, "config.json")["client_names"] == dict(
        zip("0123", ("art", "photo", "sketch", "video"), strict=True)
    )
    page = (folder / "report.html").read_text()
    assert "site sketch" in page and "site 2" not in page
