"""The section about adding a trainer, done to a copy of the package: the new trainer is wherever the others are."""

import json
from pathlib import Path

import torch

from fedstats_app.report.head_file import read_head
from fedstats_app.training.trainers import TRAINERS
from tests.docs.changed_copy import changed_copy, run_app
from tests.docs.markdown import DOCS, rows

PAGE = DOCS / "methods" / "fine-tuning.md"


def test_a_trainer_is_one_record(tmp_path: Path, run_config: dict[str, str | int | float | bool]) -> None:
    copy = changed_copy(tmp_path / "copy", PAGE, num_files=0, num_lines=7)
    new = {
        "fine-tune": "probe-no-bias",
        "method": "fedcgs",
        "keep": "last",
        "plots": True,
        "output-dir": str(tmp_path / "runs"),
    }
    printed = run_app(copy, {**run_config, **new}, ({}, {}))

    [folder] = (tmp_path / "runs").iterdir()
    found = json.loads((folder / "results.json").read_text())["training"]["fedcgs-probe-no-bias"]
    assert found["display_name"] == "linear probing, bias kept" and found["num_rounds"] == 3
    assert found["formula_bytes"] == 2 * 4 * 3 * 6 * 3 * 32  # up and down, three rounds, six clients, no bias
    assert "fine-tune probe-no-bias by fedavg on 6 clients" in printed and "\nfedcgs-probe-no-bias " in printed
    start, tuned = (read_head(folder / "heads" / f"{name}.safetensors")[0] for name in ("fedcgs", found_name(found)))
    assert torch.equal(start.bias, tuned.bias) and not torch.equal(start.weight, tuned.weight)
    card = (folder / "heads" / "README.md").read_text()
    assert "- `fedcgs-probe-no-bias`: besides the statistics of its start, clients sent trained weights" in card
    assert (folder / "plots" / "fine_tuning.png").is_file()


def found_name(entry: dict[str, str]) -> str:
    return f"{entry['start']}-{entry['stage']}"


def test_the_page_lists_every_trainer() -> None:
    [said] = [values for key, values in rows(PAGE, "key") if key == "`fine-tune`"]
    assert said == "; ".join(["`none`", *(f"`{name}`: {trainer.tunes}" for name, trainer in TRAINERS.items())])
