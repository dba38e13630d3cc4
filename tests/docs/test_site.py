"""The documentation site is built without a warning, has every page, and loads nothing from elsewhere."""

import os
import re
import sys
from pathlib import Path

import pytest

import fedstats_app
from fedstats_app import strategies
from tests.docs.markdown import DOCS, DOCUMENTS, REPOSITORY, RESEARCH
from tests.support.commands import output_of

pytest.importorskip("material", reason="the extra docs is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    output_of(command, cwd=REPOSITORY, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


def test_every_page_is_in_the_menu_and_on_the_site(site: Path) -> None:
    listed = re.findall(r": (\S+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE)
    own = {path.relative_to(DOCS).as_posix() for path in DOCUMENTS if path not in RESEARCH}
    assert set(listed) == own | {f"research/{path.name}" for path in RESEARCH} | {"about.md"}
    for name in listed:
        page = site / re.sub(r"(index|README)?\.md$", "", name) / "index.html"
        assert "<article" in page.read_text(), name


def test_links_out_of_the_documents_lead_to_files_of_the_site(site: Path) -> None:
    conf = {path.relative_to(REPOSITORY / "conf") for path in (REPOSITORY / "conf").rglob("*.toml")}
    copied = {path.relative_to(site / "conf") for path in (site / "conf").rglob("*.toml")}
    assert {path for path in conf if len(path.parts) == 1} <= copied <= conf  # the papers' tables are chosen by name
    assert (site / "about" / "index.html").exists()
    assert 'href="../about/"' in (site / "guide" / "index.html").read_text()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loading = re.compile(r"<(?:script|img|link)[^>]*(?:src|href)=[\"']?(https?:)?//", re.IGNORECASE)
    assert [page for page in site.rglob("*.html") if loading.search(page.read_text())] == []


def test_public_names_are_on_the_page_of_the_api_with_what_they_take_and_raise(site: Path) -> None:
    page = (site / "api" / "index.html").read_text()
    for name in {*fedstats_app.__all__, *strategies.__all__} - {"__version__"}:
        assert f">{name}<" in page, name
    for said in ("ConfigError", "UnknownFlower", "run_folder", "The run folder."):  # of two docstrings
        assert said in page
    assert ":class:" not in page and ":func:" not in page
