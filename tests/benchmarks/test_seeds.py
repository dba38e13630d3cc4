import json
import os
import stat
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks import seeds
from fedstats_app.config import ConfigError
from fedstats_app.results.run_folder import RunFolder
from tests.support.trainings import make_training, write_run

REPOSITORY = Path(__file__).parents[2]

# Stands for `flwr run`: reads the file of settings as Flower would, and leaves a run folder that was made before.
_FLWR = """#!{python}
import pathlib, shutil, sys, tomllib
assert sys.argv[1:3] == ["run", {root!r}] and sys.argv[3] == "--stream" and sys.argv[4] == "--run-config", sys.argv
settings = tomllib.loads(pathlib.Path(sys.argv[5]).read_text())
seed = settings["seed"]
with open({log!r}, "a") as log:
    print(seed, *sys.argv[6:], file=log)
run = pathlib.Path(settings["output-dir"], f"run-{{seed}}-{failing}")
shutil.copytree(next(pathlib.Path({runs!r}, str(seed)).iterdir()), run)
if seed == {failing}:
    (run / "status.json").write_text('{{"state": "failed", "reason": "OSError: no disk"}}')
"""


class Flower:
    """A command `flwr` on PATH, and what it was asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.command, self.log, self.runs = folder / "bin" / "flwr", folder / "log", folder / "made"
        self.command.parent.mkdir()
        self.log.touch()
        for seed in range(3):
            training = make_training("fedcof", [0.5, 0.6 + seed / 10])
            write_run(self.runs / str(seed), [training], {"fedcof": {"accuracy": 0.5}})
        self.fail_at(-1)
        monkeypatch.setenv("PATH", f"{self.command.parent}{os.pathsep}{os.environ['PATH']}")

    def fail_at(self, seed: int) -> None:
        paths = {"root": str(REPOSITORY), "log": str(self.log), "runs": str(self.runs)}
        self.command.write_text(_FLWR.format(python=sys.executable, failing=seed, **paths))
        self.command.chmod(self.command.stat().st_mode | stat.S_IXUSR)

    def asked(self) -> list[str]:
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        return lines


@pytest.fixture
def flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flower:
    return Flower(tmp_path, monkeypatch)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "probe.toml"
    path.write_text('method = "fedcof"  # as in conf/\nlearning-rate = 1e-5\n')
    return path


def test_settings_of_a_seed_are_the_files_the_overrides_and_its_own(config: Path, tmp_path: Path) -> None:
    settings = seeds.seed_settings(config, {"num-clients": 7}, 3, tmp_path / "seed-3")
    expected = {"method": "fedcof", "learning-rate": 1e-5, "num-clients": 7, "seed": 3}
    assert settings == {**expected, "output-dir": str(tmp_path / "seed-3")}
    with pytest.raises(ConfigError, match="num-client: no such key"):
        seeds.seed_settings(config, {"num-client": 7}, 3, tmp_path)
    config.write_text("no toml")
    with pytest.raises(ValueError, match=r"probe\.toml is no TOML file"):
        seeds.seed_settings(config, {}, 0, tmp_path)


def test_every_seed_runs_once_and_the_summary_is_written(
    flower: Flower, config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--seeds", "2", "--output-dir", str(out), str(config), "dataset=parquet:/some/where", "plots=false"]
    seeds.main([*arguments, "--federation-config", "num-supernodes=3"])
    assert flower.asked() == ["0 --federation-config num-supernodes=3", "1 --federation-config num-supernodes=3"]
    settings = tomllib.loads((out / "probe" / "seed-1" / "settings.toml").read_text())
    assert settings["dataset"] == "parquet:/some/where" and settings["plots"] is False
    assert settings["learning-rate"] == 1e-5 and settings["output-dir"] == str(out / "probe" / "seed-1")
    found = json.loads((out / "seeds.json").read_text())["probe"]
    assert found["sections"]["training"]["fedcof-probe"]["accuracy"]["values"] == [0.6, 0.7]
    assert len(found["runs"]) == 2
    assert (out / "training.png").read_bytes().startswith(b"\x89PNG")
    printed = capfd.readouterr().out
    assert (out / "seeds.md").read_text() in printed
    assert "65.00 ± 7.07" in printed


def test_seeds_that_completed_are_not_run_again_and_a_failed_one_is_named(
    flower: Flower, config: Path, tmp_path: Path
) -> None:
    arguments = ["--seeds", "3", "--output-dir", str(tmp_path / "out"), str(config)]
    flower.fail_at(1)
    with pytest.raises(SystemExit, match=r"seed 1 did not complete \(flwr's exit code 0\): failed: OSError: no disk"):
        seeds.main(arguments)
    assert flower.asked() == ["0", "1"]
    flower.fail_at(-1)
    seeds.main(arguments)
    assert flower.asked() == ["1", "2"]
    seeds.main(arguments)
    assert flower.asked() == []


def test_runs_of_other_settings_are_not_taken_for_these(flower: Flower, config: Path, tmp_path: Path) -> None:
    arguments = ["--seeds", "1", "--output-dir", str(tmp_path / "out"), str(config)]
    seeds.main(arguments)
    with pytest.raises(SystemExit, match="holds runs of other settings"):
        seeds.main([*arguments, "num-clients=5"])
    assert flower.asked() == ["0"]


def test_a_run_that_leaves_no_folder_is_a_failure(flower: Flower, config: Path, tmp_path: Path) -> None:
    flower.command.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(SystemExit, match="it left no run folder"):
        seeds.main(["--seeds", "1", "--output-dir", str(tmp_path / "out"), str(config)])


def test_a_run_that_was_killed_is_no_completed_one(tmp_path: Path) -> None:
    RunFolder.create(str(tmp_path), 1).write_status("running")
    assert seeds.completed_run(tmp_path) is None
    done = write_run(tmp_path, [], {}, run_id=2)
    assert seeds.completed_run(tmp_path) == done


def test_experiments_with_the_same_trainings_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, [make_training("fedcof", [0.5, 0.6])], {})
    write_run(tmp_path / "c", [make_training("fed3r", [0.5, 0.6])], {})
    experiments = {name: list((tmp_path / name).iterdir()) for name in ("a", "b", "c")}
    names = [training.name for training in seeds._trainings(experiments)]
    assert names == ["fedcof (a)", "fedcof (b)", "fed3r-probe"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["num-clients=5"], "at least one .toml file"),
        (["--seeds", "0", "probe.toml"], "at least one seed"),
        (["probe.toml", "something"], "the rest must be key=value"),
        (["a/probe.toml", "b/probe.toml"], "differ in their names"),
        (["probe.toml", "seed=3"], "seed: set by this command"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        seeds.main(["--output-dir", str(tmp_path), *arguments])
    assert message in capsys.readouterr().err
