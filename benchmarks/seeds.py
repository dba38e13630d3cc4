"""Runs an experiment once per seed and says what came out: mean and standard deviation.

    python -m benchmarks.seeds --seeds 5 --output-dir /tmp/seeds conf/probe.toml conf/fine-tune.toml num-clients=100

Every file of run-config keys is an experiment; keys after the files go into all of them. Runs come one after the other,
in the Flower environment of the caller. A seed whose run completed is not run again, so that an interrupted command can
be repeated. DIR gets a folder per experiment with the run folders, seeds.json (all numbers), seeds.md (the tables that
are printed) and, where something was trained, training.png.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.seed_statistics import aggregate, markdown, read_trainings
from fedstats_app.config import AppConfig
from fedstats_app.outcomes.training_record import TrainingResult
from fedstats_app.storage.files import to_json, write_atomically

REPOSITORY = Path(__file__).resolve().parents[1]
_SETTINGS = "settings.toml"
_OWN_KEYS = ("seed", "output-dir")


def seed_settings(config: Path, overrides: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """Return the run-config keys of one seed, checked.

    Parameters
    ----------
    config : Path
        A TOML file of run-config keys.
    overrides : mapping
        Keys that win over the file's.
    seed : int
        Goes into the key `seed`.
    folder : Path
        Goes into the key `output-dir`.

    Raises
    ------
    ValueError
        If the file is no TOML, or a key is unknown or has a value that is not allowed.
    """
    try:
        settings = tomllib.loads(config.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{config} is no TOML file: {error}") from error
    settings = {**settings, **overrides, "seed": seed, "output-dir": str(folder)}
    AppConfig.from_run_config(settings)
    return settings


def completed_run(folder: Path) -> Path | None:
    """Return the newest run folder in a folder whose status says completed, None where there is none."""
    runs = sorted(path.parent for path in folder.glob("*/status.json"))
    done = [run for run in runs if _status(run)["state"] == "completed"]
    return done[-1] if done else None


def run_seed(settings: Mapping[str, Any], folder: Path, flower_options: Sequence[str]) -> Path:
    """Run one seed, unless it was run before.

    Parameters
    ----------
    settings : mapping
        From `seed_settings`.
    folder : Path
        Of this seed.
    flower_options : sequence of str
        Further words of the `flwr run` command.

    Returns
    -------
    Path
        The run folder.

    Raises
    ------
    ValueError
        If the folder holds runs of other settings.
    RuntimeError
        If the run did not complete; the message says why.
    """
    file, text = folder / _SETTINGS, _to_toml(settings)
    if file.is_file() and file.read_text(encoding="utf-8") != text:
        raise ValueError(f"{folder} holds runs of other settings ({file}): take another --output-dir")
    done = completed_run(folder)
    if done is not None:
        print(f"seed {settings['seed']}: completed before, in {done}", flush=True)
        return done
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text.encode())
    before = set(folder.iterdir())
    # Flower's exit code is 0 also where the app failed; the run folder says how it ended.
    ended = subprocess.run(
        [_flwr(), "run", str(REPOSITORY), "--stream", "--run-config", str(file), *flower_options], check=False
    )
    done = completed_run(folder)
    if done is None:
        reasons = [_status(run) for run in set(folder.iterdir()) - before if (run / "status.json").is_file()]
        why = "; ".join(f"{status['state']}: {status['reason']}" for status in reasons) or "it left no run folder"
        raise RuntimeError(f"seed {settings['seed']} did not complete (flwr's exit code {ended.returncode}): {why}")
    return done


def run_experiment(
    config: Path, overrides: Mapping[str, Any], num_seeds: int, folder: Path, flower_options: Sequence[str]
) -> list[Path]:
    """Run all seeds of one experiment and return their run folders."""
    folders = [folder / f"seed-{seed}" for seed in range(num_seeds)]
    # All settings first: what is wrong with the last seed's would be wrong with the first's.
    settings = [seed_settings(config, overrides, seed, one) for seed, one in enumerate(folders)]
    return [run_seed(one, path, flower_options) for one, path in zip(settings, folders, strict=True)]


def write_summary(experiments: Mapping[str, Sequence[Path]], folder: Path) -> str:
    """Write seeds.json, seeds.md and training.png, and return the tables.

    Parameters
    ----------
    experiments : mapping
        From each experiment's name to its run folders.
    folder : Path
        Where to.
    """
    found = {name: aggregate(runs) for name, runs in experiments.items()}
    named = {name: {"runs": [str(run) for run in runs], **found[name]} for name, runs in experiments.items()}
    tables = markdown(found)
    write_atomically(folder / "seeds.json", (to_json(named) + "\n").encode())
    write_atomically(folder / "seeds.md", tables.encode())
    trainings = _trainings(experiments)
    if any(training.final_accuracy is not None for training in trainings):
        from fedstats_app.results.plots.fine_tuning import plot_training

        plot_training(trainings, folder / "training.png", _title(next(iter(experiments.values()))[0]))
    return tables


def _trainings(experiments: Mapping[str, Sequence[Path]]) -> list[TrainingResult]:
    """Read all trainings; of experiments with the same ones, the experiment's name tells them apart."""
    read = {name: [one for run in runs for one in read_trainings(run)] for name, runs in experiments.items()}
    shared = [{training.name for training in trainings} for trainings in read.values()]
    twice = {name for names in shared for name in names if sum(name in other for other in shared) > 1}
    return [
        replace(training, name=f"{training.start} ({experiment})") if training.name in twice else training
        for experiment, trainings in read.items()
        for training in trainings
    ]


def _title(run: Path) -> str:
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    return f"{config['data']}, {config['backbone']['name']}, {config['num_clients']:,} clients"


def _status(run: Path) -> dict[str, Any]:
    status: dict[str, Any] = json.loads((run / "status.json").read_text(encoding="utf-8"))
    return status


def _to_toml(settings: Mapping[str, Any]) -> str:
    """Write flat TOML; for strings, numbers and truth values JSON's spelling is TOML's too, but for inf and nan."""
    lines = (
        f"{key} = {value!r}" if isinstance(value, float) else f"{key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in settings.items()
    )
    return "\n".join(lines) + "\n"


def _value(text: str) -> Any:
    """Read a value as TOML would: numbers, truth values and quoted text as such, the rest as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _flwr() -> str:
    found = shutil.which("flwr") or shutil.which("flwr", path=str(Path(sys.executable).parent))
    if found is None:
        raise FileNotFoundError(f"no command flwr on PATH or beside {sys.executable}")
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.seeds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="+", metavar="FILE.toml or key=value")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0")
    parser.add_argument("--output-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--federation-config", help="passed on to flwr run")
    options = parser.parse_args(arguments)
    files = [Path(one) for one in options.settings if one.endswith(".toml") and "=" not in one]
    pairs = [one for one in options.settings if "=" in one]
    if options.seeds < 1 or not files or len(files) + len(pairs) < len(options.settings):
        parser.error("needs at least one seed and at least one .toml file; the rest must be key=value")
    if len({file.stem for file in files}) < len(files):
        parser.error("the .toml files must differ in their names, which are those of the experiments")
    overrides = {key: _value(text) for key, _, text in (pair.partition("=") for pair in pairs)}
    if own := [key for key in _OWN_KEYS if key in overrides]:
        parser.error(f"{', '.join(own)}: set by this command")
    folder = options.output_dir.expanduser().absolute()
    flower_options = ["--federation-config", options.federation_config] if options.federation_config else []
    try:
        experiments = {
            file.stem: run_experiment(file, overrides, options.seeds, folder / file.stem, flower_options)
            for file in files
        }
    except (ValueError, RuntimeError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(write_summary(experiments, folder))


if __name__ == "__main__":
    main()
