"""Every promise of the pages that people trust names the tests that hold it."""

import re
import tomllib

import pytest

from tests.support.commands import REPOSITORY

TEXT = (REPOSITORY / "tests" / "docs" / "promises.toml").read_text(encoding="utf-8")
PROMISES: dict[str, dict[str, list[str]]] = tomllib.loads(TEXT)


@pytest.mark.parametrize("page", PROMISES)
def test_a_promise_stands_in_its_page_and_its_tests_in_the_tree(page: str) -> None:
    text = " ".join((REPOSITORY / page).read_text(encoding="utf-8").split())
    gone = [words for words in PROMISES[page] if words not in text]
    missing = []
    for test in (test for tests in PROMISES[page].values() for test in tests):
        file, _, name = test.partition("::")
        path = REPOSITORY / "tests" / file
        if not path.is_file() or not re.search(rf"^def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            missing.append(test)
    assert (gone, missing) == ([], [])
