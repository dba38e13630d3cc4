"""`fedstats check --data` as a whole, on settings and data that are right and wrong."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.cli import main
from fedstats_app.cli.check import data
from fedstats_app.settings.app_config import AppConfig
from tests.support.small_sample import whole_sample

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A run-config of the smallest network that writes into the test's own folder."""
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
    assert "feature cache in" in found["disk"]["message"] and "about 1.02 MB needed" in found["disk"]["message"]


def test_text_is_a_line_per_check_with_what_to_do(
    settings: Path, pictures: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures.parent)
    assert main(["check", "--data", "--run-config", str(settings), "--node-config", data_at(Path(pictures.name))]) == 0
    out = capsys.readouterr().out
    assert "\nok       backbone: random:tiny" in out
    assert "\nwarning  class counts: 3 of 3 classes have fewer than 5 images" in out
    assert "\n         -> add images, or set min-class-count" in out
    assert "pixels on a side" in " ".join(out.split())
    assert out.splitlines()[-1].endswith("0 failed, 2 with a warning")
    words = [line for line in out.splitlines() if str(pictures.parent) not in line]
    assert max(map(len, words)) <= 100


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


def test_enough_images_of_every_class_may_leave(settings: Path, tmp_path: Path, capsys: Capture) -> None:
    for name in ("a", "b"):
        (tmp_path / "site" / name).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(tmp_path / "site" / name / f"{number}.png")
    code, found = check(capsys, "--run-config", settings, "--node-config", data_at(tmp_path / "site"))
    assert code == 0 and found["class counts"]["message"].startswith("6 to 6 images per class")


def test_missing_data_fails_and_the_rest_goes_on(settings: Path, tmp_path: Path, capsys: Capture) -> None:
    code, found = check(capsys, "--run-config", settings, "--node-config", data_at(tmp_path / "nowhere"))
    assert code == 1 and found["data"]["level"] == "FAIL" and "nowhere" in found["data"]["message"]
    assert found["backbone"]["level"] == "ok" and "images" not in found and "disk" in found


def test_weights_that_are_not_there_fail_and_nothing_is_downloaded(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("a download"))
    path = tmp_path / "run.toml"
    path.write_text('backbone = "resnet18"\ninput-size = 32\n')
    code, found = check(capsys, "--run-config", path)
    assert code == 1 and found["backbone"]["level"] == "FAIL"
    assert "resnet18-" in found["backbone"]["message"]
    assert "HF_HUB_OFFLINE" not in os.environ


def test_partitions_that_cannot_be_made_fail(settings: Path, capsys: Capture) -> None:
    with settings.open("a") as file:
        file.write('partitioner = "natural-id"\npartition-column = "writer"\n')
    code, found = check(capsys, "--run-config", settings)
    assert code == 1 and "writer" in found["partitions"]["message"]


def test_a_certificate_file_that_is_none_fails_once(settings: Path, tmp_path: Path, capsys: Capture) -> None:
    missing = tmp_path / "none.pem"
    words = ["--run-config", settings, "--root-certificates", missing, "--superlink", "127.0.0.1:9"]
    code, found = check(capsys, *words)
    assert code == 1 and found["root certificate"]["level"] == "FAIL" and "SuperLink" not in found


def test_data_as_downloaded_are_told_and_doubts_warned_of(settings: Path, pictures: Path, capsys: Capture) -> None:
    site = pictures.parent / "site"
    site.mkdir()
    pictures.rename(site / "Training")
    (site / "Training" / "empty").mkdir()
    code, found = check(capsys, "--run-config", settings, "--node-config", data_at(site))
    assert code == 0 and found["data"]["level"] == "warning"
    assert "12 images of 4 classes (blue, empty, green, red); no test split" in found["data"]["message"]
    assert "class empty without any image (1 of 4)" in found["data"]["message"]
    with settings.open("a") as stream:
        stream.write(f'dataset = "folder:{site}"\nclasses = "blue"\n')
    code, found = check(capsys, "--run-config", settings)
    assert code == 1 and "of one class, 'blue'" in found["data"]["message"]


def test_the_licence_of_a_folders_model_is_named(settings: Path, tmp_path: Path, capsys: Capture) -> None:
    timm = pytest.importorskip("timm")
    folder = tmp_path / "model"
    folder.mkdir()
    small = {"img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 3}
    architecture = "vit_tiny_patch16_224"
    torch.save(timm.create_model(architecture, num_classes=0, **small).state_dict(), folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({"architecture": architecture, "model_args": small}))
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-nd-4.0\n---\n")
    text = settings.read_text().replace("random:tiny", f"timm:local-dir:{folder}").replace("= 16", "= 0")
    settings.write_text(text)
    code, found = check(capsys, "--run-config", settings)
    assert (code, found["backbone"]["level"]) == (0, "ok")
    assert "24 features (the class token)" in found["backbone"]["message"]
    assert "licence cc-by-nc-nd-4.0" in found["backbone"]["message"]


def test_what_has_no_room_or_may_not_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = AppConfig.of(output_dir=str(tmp_path / "runs"), cache_dir=str(tmp_path / "cache"))
    assert {finding.level for finding in data.check_disk(config, None, 1000)} == {"ok"}
    usage = data.shutil.disk_usage(tmp_path)._replace(free=90_000_000)
    with monkeypatch.context() as patched:
        patched.setattr(data.shutil, "disk_usage", lambda _: usage)
        assert {finding.level for finding in data.check_disk(config, None, 0)} == {"FAIL"}
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert {finding.level for finding in data.check_disk(config, None, 0)} == {"FAIL"}
