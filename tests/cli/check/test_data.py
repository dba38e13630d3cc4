"""`fedstats check --data` as a whole, on settings and data that are right and wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.cli import main
from tests.support.small_sample import whole_sample

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run-config of the smallest network that writes into the test's own folder."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = tmp_path / "run.toml"
    lines = ['backbone = "random:tiny"', "input-size = 16", 'device = "cpu"', "num-clients = 5"]
    path.write_text("\n".join([*lines, f'output-dir = "{tmp_path}"', f'cache-dir = "{tmp_path}"', ""]))
    return path


def data_at(path: Path) -> str:
    return f"data-path='{path}'"


def check(capsys: Capture, *words: object) -> tuple[int, dict[str, dict[str, Any]]]:
    code = main(["check", "--data", *map(str, words), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is (code == 0)
    return code, {finding["check"]: finding for finding in document["findings"]}


def test_a_simulation_that_is_ready(settings: Path, capsys: Capture) -> None:
    with whole_sample():
        code, found = check(capsys, "--run-config", settings)
    assert code == 0
    fingerprint = load_backbone("random:tiny", input_size=16, device="cpu").fingerprint[:16]
    assert fingerprint in found["backbone"]["message"] and "32 features" in found["backbone"]["message"]
    assert "8,000 images of 10 classes (T-shirt/top, Trouser" in found["data"]["message"]
    assert found["images"]["message"] == "200 of 8,000 read, all readable"


def test_text_is_a_line_a_check(
    settings: Path, pictures: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures.parent)
    assert main(["check", "--data", "--run-config", str(settings), "--node-config", data_at(Path(pictures.name))]) == 0
    out = capsys.readouterr().out
    assert "\nok       backbone: random:tiny" in out
    assert "\nwarning  class counts: 3 of 3 classes have fewer than 5 images" in out
    assert "\n         -> add images, or set min-class-count" in out and "pixels on a side" in " ".join(out.split())
    assert out.splitlines()[-1].endswith("0 failed, 2 with a warning")
    assert max(map(len, [line for line in out.splitlines() if str(pictures.parent) not in line])) <= 100


def test_damaged_images_are_counted(settings: Path, pictures: Path, capsys: Capture) -> None:
    broken = sorted(pictures.rglob("*.png"))[:2]
    for path in broken:
        path.write_bytes(b"no picture")
    code, found = check(capsys, "--run-config", settings, "--node-config", data_at(pictures))
    assert code == 0 and found["images"]["level"] == "warning"
    assert "2 of 12 that were tried cannot be read, such as blue/0.png" in found["images"]["message"]
    for path in pictures.rglob("*.png"):
        path.write_bytes(b"no picture")
    code, found = check(capsys, "--run-config", settings, "--node-config", data_at(pictures))
    assert code == 1 and found["images"]["level"] == "FAIL"


def test_missing_data_fails_and_the_rest_goes_on(settings: Path, tmp_path: Path, capsys: Capture) -> None:
    code, found = check(capsys, "--run-config", settings, "--node-config", data_at(tmp_path / "nowhere"))
    assert code == 1 and found["data"]["level"] == "FAIL" and "nowhere" in found["data"]["message"]
    assert found["backbone"]["level"] == "ok" and "images" not in found


def test_absent_weights_fail(settings: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("a download"))
    settings.write_text('backbone = "resnet18"\ninput-size = 32\n')
    code, found = check(capsys, "--run-config", settings)
    assert code == 1 and found["backbone"]["level"] == "FAIL"
    assert "resnet18-" in found["backbone"]["message"]


def test_partitions_that_cannot_be_made_fail(settings: Path, capsys: Capture) -> None:
    with settings.open("a") as file:
        file.write('partitioner = "natural-id"\npartition-column = "writer"\n')
    code, found = check(capsys, "--run-config", settings)
    assert code == 1 and "writer" in found["partitions"]["message"]


def test_data_as_downloaded_are_told_and_doubts_warned_of(settings: Path, pictures: Path, capsys: Capture) -> None:
    site = pictures.parent / "site"
    site.mkdir()
    pictures.rename(site / "Training")
    (site / "Training" / "empty").mkdir()
    code, found = check(capsys, "--run-config", settings, "--node-config", data_at(site))
    assert code == 0 and found["data"]["level"] == "warning"
    assert "12 images of 4 classes (blue, empty, green, red); no test split" in found["data"]["message"]
    assert "no image of class 'empty' (1 of 4)" in found["data"]["message"]
    with settings.open("a") as stream:
        stream.write(f'dataset = "folder:{site}"\nclasses = "blue"\n')
    code, found = check(capsys, "--run-config", settings)
    assert code == 1 and "of one class, 'blue'" in found["data"]["message"]
