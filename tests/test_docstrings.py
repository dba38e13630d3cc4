"""Every class of the API's page has an example, which runs."""

import doctest
import importlib
import re
from collections.abc import Iterator

import pytest

from tests.docs.markdown import DOCS


def classes() -> Iterator[str]:
    for path in re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE):
        if path.rpartition(".")[2][0].isupper():
            yield path


@pytest.mark.parametrize("path", list(classes()))
def test_a_public_class_has_an_example_that_runs(path: str) -> None:
    module, _, name = path.rpartition(".")
    found = importlib.import_module(module)
    [example] = doctest.DocTestFinder(recurse=False).find(getattr(found, name), name, found)
    results = doctest.DocTestRunner().run(example)
    assert results.attempted and not results.failed
