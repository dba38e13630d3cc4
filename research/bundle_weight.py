"""Lines of code that a site's owner approves with a bundle, those that the apps can import, and all others.

    python -m research.bundle_weight

Lines are counted without blanks, comments and docstrings.
"""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedstats_app.cli.arguments import COMMANDS

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "fedstats_app").rglob("*.py"))
}
APPS = ("fedstats_app.client_app", "fedstats_app.server_app")
# Commands are imported by their names.
COMMAND_LINE = (
    "fedstats_app.cli.__main__",
    *(f"fedstats_app.cli.{command.home.rpartition('.')[0]}" for command in COMMANDS.values()),
)
# Modules that `fedstats_app.NAME` imports on first use, and before only for types; no app uses it.
_LIBRARY = "fedstats_app"
_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


# Modules that only training needs, and those that answer its messages.
TRAINING = (
    *(f"fedstats_app.{room}" for room in ("training", "fedmezo")),
    *(f"fedstats_app.client.{name}" for name in ("training", "replica")),
    *(f"fedstats_app.wire.{name}" for name in ("training", "mezo")),
)


def reached(roots: Iterable[str], *, library: bool = False, without: tuple[str, ...] = ()) -> set[str]:
    """Follow every import from some modules: at the top, in functions, for types, and those by a table of names.

    Modules and rooms in ``without`` are left out.
    """
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module in found or module.startswith(without):
            continue
        found.add(module)
        if library or module != _LIBRARY:
            waiting += _imports(module)
        waiting += [package for package in [module.rpartition(".")[0]] if package]
    return found


@functools.cache
def _read(module: str) -> tuple[str, ast.Module]:
    text = MODULES[module].read_text(encoding="utf-8")
    return text, ast.parse(text)


def _imports(module: str) -> Iterator[str]:
    text, tree = _read(module)
    # A module that imports by name has the names, which are below the package or below itself, in a table.
    by_name = "import_module(" in text
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif by_name and isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.strip(".")
            names = [f"fedstats_app.{name}", f"{module}.{name}"] if name else []
        yield from (name for name in names if name in MODULES)


def code_lines(module: str) -> int:
    """Count a module's lines of code."""
    text, tree = _read(module)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def weights() -> dict[str, tuple[int, int]]:
    """Count modules and lines of code of the apps, and of the command line and the library beside them."""
    apps = reached(APPS)
    beside = reached([*COMMAND_LINE, _LIBRARY], library=True) - apps
    return {
        name: (len(modules), sum(map(code_lines, modules)))
        for name, modules in (("apps", apps), ("command line", beside))
    }


if __name__ == "__main__":
    for name, (modules, lines) in weights().items():
        print(f"{name}: {lines:,} lines of code in {modules} modules")
