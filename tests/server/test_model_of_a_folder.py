"""A whole run on a foundation backbone from a folder: what it is stands in head, record and card, and it predicts."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedstats_app
from fedstats_app.report.head_file import read_head
from tests.support.simulation import read_json, simulate

timm = pytest.importorskip("timm", reason="timm is an optional extra")

ARCHITECTURE = "vit_tiny_patch16_224"


def test_a_run_names_features_and_their_licence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "uni"
    folder.mkdir()
    small = {"img_size": 32, "embed_dim": 24, "num_heads": 3}
    network = timm.create_model(ARCHITECTURE, num_classes=0, depth=2, init_values=1e-5, **small)
    checkpoint = {"teacher": {f"backbone.{key}": value for key, value in network.state_dict().items()}}
    torch.save(checkpoint, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({"architecture": ARCHITECTURE, "model_args": small}))
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-nd-4.0\nextra_gated_prompt: accept\n---\n")

    run = simulate(
        tmp_path,
        method="fedncm",
        partitioner="iid",
        partition={"samples_per_class": 10},
        backbone=f"timm:local-dir:{folder}",
        input_size=0,
        backbone_arguments="init_values=1e-5, depth=2",
        backbone_pooling="cls+mean",
    )

    head, metadata = read_head(run / "heads" / "fedncm.safetensors")
    assert head.weight.shape == (10, 48) and metadata["backbone-arguments"] == "depth=2,init_values=1e-05"
    assert metadata["backbone-pooling"] == "cls+mean"
    assert metadata["backbone-features"] == "the class token, then the mean of the patch tokens"
    assert metadata["backbone-licence"] == "cc-by-nc-nd-4.0"
    recorded = read_json(run, "config.json")["backbone"]
    assert (recorded["input_size"], recorded["licence"]) == (32, "cc-by-nc-nd-4.0")
    assert "licence of the weights, and so of the heads: cc-by-nc-nd-4.0" in capsys.readouterr().out
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (28, 28, 3), dtype=np.uint8))
    expected = fedstats_app.load(run, "fedncm", device="cpu").scores(picture)
    moved = folder.rename(tmp_path / "elsewhere")
    torch.testing.assert_close(fedstats_app.load(run, "fedncm", weights=moved, device="cpu").scores(picture), expected)
