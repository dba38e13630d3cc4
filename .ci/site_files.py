"""For the documentation site: pages link to files outside docs/ as they do in the repository, and the site has them.

The README and the pages of research/ become pages; settings, deployment files and sources are shown as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# A page README.md would take the place of index.md.
README, README_PAGE = ROOT / "README.md", "about.md"
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the README and every file outside docs/ that a page links to."""
    pages = [README, *(ROOT / "research").glob("*.md")]
    named = {*pages}
    for page in [*Path(config["docs_dir"]).rglob("*.md"), *pages]:
        for target, _ in _LINK.findall(page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            if path.is_file() and path.is_relative_to(ROOT) and not path.is_relative_to(config["docs_dir"]):
                named.add(path)
    for path in sorted(named):
        files.append(File.generated(config, _site_name(path, config), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at where the site has what they name."""
    own = README if page.file.src_uri == README_PAGE else Path(page.file.abs_src_path)

    def moved(link: re.Match[str]) -> str:
        path = (own.parent / link[1]).resolve()
        if ":" in link[1] or not path.exists():
            return link[0]
        up = "../" * page.file.src_uri.count("/")
        return f"]({up}{_site_name(path, config)}{link[2] or ''})"

    return _LINK.sub(moved, markdown)


def _site_name(path: Path, config: Any) -> str:
    """Return where the site has a file of the repository."""
    docs = Path(config["docs_dir"])
    return README_PAGE if path == README else path.relative_to(docs if path.is_relative_to(docs) else ROOT).as_posix()


def on_page_content(html: str, **_: object) -> str:
    """Show what docstrings refer to by its last name: the page of the API is no Sphinx."""
    return re.sub(r":(?:attr|class|func|meth|mod):<code>~?(?:[\w.]*\.)?(\w+)</code>", r"<code>\1</code>", html)
