"""Settings of runs that research's programs write down are options of the app: one of a deleted option ends them."""

import ast
import re
from pathlib import Path

import research
from fedstats_app.settings.app_config import AppConfig

KEY = re.compile(r"(?<![\w@./=-])([a-z]+(?:-[a-z]+)*)=")
# Where one of these stands, the others are settings of a run too.
OURS = {"method", "backbone", "fine-tune"}


def texts(program: str) -> list[str]:
    """Return a program's strings, with a number in place of what a formatted one computes."""
    found = []
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def unknown(program: str) -> set[str]:
    keys = [set(KEY.findall(text)) for text in texts(program)]
    return {key for own in keys if own & OURS for key in own} - AppConfig().to_run_config().keys()


def test_every_setting_is_an_option() -> None:
    assert unknown("f\"method='fedncm' keep='last' num-clients={clients}\"") == {"keep"}

    programs = sorted(Path(research.__path__[0]).rglob("*.py"))
    found = {path.name: keys for path in programs if (keys := unknown(path.read_text(encoding="utf-8")))}
    assert not found
