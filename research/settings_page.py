"""The run-config's lines of pyproject.toml and the page docs/settings.md, both made from the options' records.

Flower reads run-config from pyproject.toml as it is written there, so the records cannot replace these lines; after a
change of an option they are written anew from a clone's folder:

    python -m research.settings_page --write

With `--count` it prints how many options a run and a node have.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

from fedstats_app.base.option import Check, Options
from fedstats_app.methods import METHODS
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig

PYPROJECT, PAGE = Path("pyproject.toml"), Path("docs/settings.md")
_HEADER = "[tool.flwr.app.config]"
_COLUMN, _WIDTH = 36, 120
# Words of a check that allow nothing by themselves.
_FILLING = {"a", "an", "the", "one", "of", "or", "some", "and", "all", "none", "true", "false", "text", "path", "start"}
_FILLING |= {"with", "different", "words", "empty", "run"}
_PAGE_HEAD = """# Settings

Every line shows a key's default and, in brackets, its limits ([how to set them](guide.md#settings)). A key with a dot
stands in a table: `-c "fedcof.shrinkage=0.1"`, or below `[fedcof]` in a file. A method's options also make a
[variant](methods/index.md) of it, and are arguments of its Strategy class: `Fed3R(num_classes, normalize=False)`.
"""


def _groups() -> list[tuple[str, Options]]:
    """List the groups with their titles; the methods' have their paper's spelling."""
    titles = {record.options_type: f"{record.display_name} ({record.paper})" for record in METHODS.values()}
    made = []
    for group in AppConfig().groups:
        first = (type(group).__doc__ or "").split("\n")[0].split(":")[0].rstrip(".")
        made.append((titles.get(type(group), first), group))
    return [(title, group) for title, group in made if group.to_config()]


def run_config_lines() -> str:
    """Write every run-config key with its default and its sentence: in groups, then in tables."""
    lines: list[str] = []
    shown: set[str] = set()
    tables: dict[str, list[str]] = {}
    for title, group in _groups():
        own: list[str] = []
        values = group.to_config()
        for key, option in type(group).keys().items():
            if key in shown:
                continue
            shown.add(key)
            table, _, name = key.rpartition(".")
            start = f"{name} = {json.dumps(values[key])}".ljust(_COLUMN - 1)
            texts = textwrap.wrap(option.metadata["sentence"], _WIDTH - max(_COLUMN, len(start) + 1) - 2)
            place = tables.setdefault(table, []) if table else own
            place += [f"{start} # {texts[0]}", *(" " * _COLUMN + f"# {text}" for text in texts[1:])]
        lines += ["", f"# --- {title} ---", *own] if own else []
    for table, own in tables.items():
        lines += ["", f"{_HEADER[:-1]}.{table}]", *own]
    return "\n".join(lines).lstrip("\n") + "\n"


def with_run_config(pyproject: str) -> str:
    """Put the lines of :func:`run_config_lines` into the text of pyproject.toml."""
    before, rest = pyproject.split(f"{_HEADER}\n")
    after = re.search(rf"^(?!{re.escape(_HEADER[:-1])})\[", rest, flags=re.M)
    return f"{before}{_HEADER}\n{run_config_lines()}\n{rest[after.start() if after else len(rest) :]}"


def page() -> str:
    """Write the reference page: a list for each group, with default, range and sentence of every option."""
    parts = [_PAGE_HEAD]
    for title, group in _groups():
        lines = []
        for key, option in type(group).keys().items():
            default, sentence = json.dumps(option.default), option.metadata["sentence"]
            more = _not_said(allowed(option.metadata["check"]), f"{default} {sentence}")
            lines.append(f"- `{key}={default}`{more}: {sentence.replace(' |', ';')}")
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _not_said(allowed: str, text: str) -> str:
    """Say what is allowed, in brackets; nothing if the default and the sentence have all of its words."""
    allowed = re.sub(r" \(did you mean.*|; must be.*|, separated by commas|, or three.*", "", allowed)
    words = set(re.findall(r"[\w-]+", allowed)) - set(re.findall(r"[\w-]+", text)) - _FILLING
    if "/PATH" in text:
        words -= {"absolute", "folder"}
    if "methods" in text:
        words -= METHODS.keys()
    if not words:
        return ""
    allowed = re.sub(r"a whole number from |a number in |,? or \"auto\"|, or (?:be )?empty", "", allowed)
    allowed = re.sub(r"\((\S+), inf\)", r">\1", re.sub(r"\[(\S+), inf\)", r"≥\1", allowed))
    allowed = re.sub(r"(\d+) to (\d+)", r"\1-\2", allowed)
    if re.fullmatch(r"[01]-\d{6,}|[>≥]0", allowed):  # as any reader expects
        return ""
    return f" {allowed}" if allowed.startswith(("[", "(")) else f" ({allowed})"


def allowed(check: Check) -> str:
    """Say what a check allows, in the words with which it refuses."""
    try:
        check(object())
    except ValueError as error:
        return str(error).removeprefix("must be ").removeprefix("must ")
    return ""


def options_of_a_run() -> set[str]:
    """Return the keys of every group of options, whether or not the configuration has it."""
    kinds = [Options]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return {key for kind in kinds if kind is not NodeConfig for key in kind.keys()}  # noqa: SIM118  # no mapping


def options_of_a_node() -> set[str]:
    """Return the keys of a node-config, that of the command `fedstats node` among them."""
    return {*NodeConfig.keys(), "approved-apps"}


if __name__ == "__main__":
    if sys.argv[1:] == ["--count"]:
        sys.exit(f"options of a run {len(options_of_a_run())}, of a node {len(options_of_a_node())}")
    made = {PYPROJECT: with_run_config(PYPROJECT.read_text(encoding="utf-8")), PAGE: page()}
    if sys.argv[1:] == ["--write"]:
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
    else:
        print(made[PAGE])
