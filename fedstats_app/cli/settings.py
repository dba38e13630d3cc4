"""Settings as `flwr run --run-config` takes them: one TOML file, or words KEY=VALUE."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedstats_app.base.option import flattened
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig

# As Flower reads them: a value in quotes may hold spaces. Flower drops what stands between two pairs without a word.
_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")


class SettingsError(ValueError):
    """Text that cannot be read as settings; one problem per line."""


def read_settings(given: Sequence[str]) -> dict[str, Any]:
    """Read settings as Flower does, but name what it would refuse namelessly or leave out.

    Parameters
    ----------
    given : sequence of str
        One path that ends in ``.toml``; or texts of pairs, such as ``num-clients=20 method='fedcof'``.

    Returns
    -------
    dict
        Values by key, as TOML has them; a table's keys stand behind its name and a dot.

    Raises
    ------
    SettingsError
        If there is no such file, it is no TOML, or a word is no pair.
    """
    if not any(text.endswith(".toml") for text in given):
        return _read_pairs(given)
    if len(given) > 1:
        raise SettingsError(f"Flower takes either one TOML file or KEY=VALUE words, got {' '.join(given)}")
    [name] = given
    try:
        return flattened(tomllib.loads(Path(name).expanduser().read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise SettingsError(f"{name}: nothing is there") from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"{name}: {error}") from error


def read_in_turn(given: Iterable[str]) -> dict[str, Any]:
    """Read files and pairs one after another; what comes later counts."""
    values: dict[str, Any] = {}
    for text in given:
        values |= read_settings([text])
    return values


def _read_pairs(given: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    problems = []
    for text in given:
        for word in _PAIR.sub(" ", text).split():
            problems.append(f"{word!r} is no KEY=VALUE, and Flower would leave it out without a word")
        for key, value in _PAIR.findall(text):
            try:
                values |= flattened(tomllib.loads(f"{key} = {value}"))
            except tomllib.TOMLDecodeError:
                problems.append(_not_toml(key, value))
    if problems:
        raise SettingsError("\n".join(problems))
    return values


def _not_toml(key: str, value: str) -> str:
    """Say what a value must be that is no TOML: text in quotes, if it would be right then."""
    if "@" in key:
        return f"{key}={value} is a method with an option: method='{key}={value}'"
    member = {**AppConfig.known(), **NodeConfig.keys()}.get(key)
    try:
        if member is not None:
            member.metadata["check"](value)
    except ValueError as error:
        return f"{key}: {error}, got {value}"
    return f"{key}: {value!r} is no TOML value; text stands in quotes: {key}='{value}'"


def read_node_config(given: Iterable[str]) -> dict[str, Any]:
    """Read a node-config; here, unlike on a node, the user's folder is known, so that a data-path may be relative."""
    values = read_in_turn(given)
    if path := values.get("data-path"):
        values["data-path"] = str(Path(path).expanduser().absolute())
    return values


def settings_of_app(folder: Path) -> dict[str, Any]:
    """Read the defaults of an app of ours in a folder, which its user may have changed; empty if none is there."""
    try:
        app = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
        ours = app["components"]["serverapp"] == "fedstats_app.server_app:app"
        return flattened(app["config"]) if ours else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def run_config_words(given: Sequence[str]) -> str:
    """Write the settings as words of a command line, "" for none."""
    if not given:
        return ""
    joined = " ".join(given)
    # A shell's double quotes keep the single ones of TOML readable.
    plain = not re.search(r'["$`\\!]', joined) and not joined.endswith(".toml")
    return f'--run-config "{joined}"' if plain else f"--run-config {shlex.quote(joined)}"
