"""What the tests read out of Markdown: blocks, links, tables, inline code, commands."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import REPOSITORY as REPOSITORY

DOCS = REPOSITORY / "docs"
RESEARCH = sorted((REPOSITORY / "research").glob("*.md"))
DOCUMENTS = [*sorted(DOCS.rglob("*.md")), *RESEARCH]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block; ``output`` is the text block right behind it, which says what it prints."""

    language: str
    code: str
    line: int
    output: str | None

    @property
    def file(self) -> str | None:
        """The path in a first line such as ``# fedstats_app/heads/x.py``."""
        first = re.match(r"# (\S+\.py)\n", self.code)
        return first[1] if first else None


def blocks(path: Path, language: str) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        behind = re.compile(r"\s*^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL).match(text, fence.end())
        line = text.count("\n", 0, fence.start()) + 1
        if fence[1] == language:
            found.append(Block(language, fence[2], line, behind[1] if behind else None))
    return found


def prose(path: Path) -> str:
    """The text without its blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def inline_code(path: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(path))


def links(path: Path) -> list[str]:
    """Targets of links and images that stay in the repository."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)) if not re.match(r"[a-z]+:", target)]


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(path: Path, first_heading: str) -> list[list[str]]:
    """Rows of the tables whose first column has this heading, as cells."""
    found: list[list[str]] = []
    for table in re.findall(r"(?:^\|.*\n)+", path.read_text(encoding="utf-8"), re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        if lines[0][0] == first_heading:
            found += lines[2:]
    return found


def items(path: Path, heading: str) -> list[list[str]]:
    """The items of the lists under a heading, each as what stands before its first colon and behind it."""
    [text] = [part for part in re.split(r"^#+ ", prose(path), flags=re.M) if part.startswith(f"{heading}\n")]
    found = re.findall(r"^- (.+(?:\n  .+)*)", text, flags=re.M)
    return [(" ".join(item.split()) + ": ").split(": ", 1) for item in found]


def commands(path: Path) -> list[str]:
    """Every ``flwr run ...`` of a document, one per line, without what stands before or behind it."""
    found = re.findall(r"flwr run [^\n]*", "\n".join(block.code for block in blocks(path, "bash")).replace("\\\n", " "))
    found += [code for code in inline_code(path) if code.startswith("flwr run ")]
    return [re.split(r" &&| \|\|| \| | #", command)[0] for command in found]
