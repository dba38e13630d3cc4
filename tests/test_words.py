"""The package's words: docstrings begin with a verb or a noun, and values are named by nouns."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SOURCES = [path for room in ("fedstats_app", "research") for path in sorted((REPOSITORY / room).rglob("*.py"))]
NO_BEGINNINGS = {"What", "Whether", "Who", "Where", "How", "Whatever", "Whoever"}
NO_NAMES = {"what", "one", "asked", "told", "said", "of", "everybodys"}


def names(tree: ast.AST) -> Iterator[str]:
    """Yield every name that a module binds to a value: variables, parameters, loop variables, fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_docstrings_and_names(path: Path) -> None:
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
    first = [text.splitlines()[0] for text in texts if text.split()]
    assert [line for line in first if line.split()[0].strip(",:") in NO_BEGINNINGS] == []
    assert sorted({name for name in names(tree) if name in NO_NAMES}) == []
