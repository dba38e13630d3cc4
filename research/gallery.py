"""The page of the examples, docs/examples.md: of each script its sentence, its output and, of a run, its picture.

python -m research.gallery
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES, PAGE, PICTURES = ROOT / "examples", ROOT / "docs" / "examples.md", ROOT / "docs" / "images" / "examples"
# It shows a run that is there, in a program that is not ours.
NOT_RUN = {"track_a_run"}
# What a run prints before an example goes on.
_END_OF_RUN = "results are in\n"
_HEAD = """# Examples

Each is a file to run and to change; `python -m research.gallery` made this page. Apps: [your own
ClientApp](own-client-app.md), [prediction from ONNX without torch](export.md).
"""


def output_of(script: Path, home: Path) -> str:
    """Run an example in an empty home, and return what it prints, but for the logs of runs."""
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    printed = subprocess.run(command, cwd=home, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    after = printed.rpartition(_END_OF_RUN)[2].partition("\n")[2] if _END_OF_RUN in printed else printed
    return after.replace(str(home), "~").strip()


def entry(script: Path, output: str, picture: bool) -> str:
    """Write an example's part of the page."""
    sentence = (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").partition("\n")[0]
    title = script.stem.replace("_", " ").capitalize()
    parts = [f"## {title}", f"{sentence}\n[{script.name}](../examples/{script.name})"]
    if output:
        parts.append(f"```text\n{output}\n```")
    if picture:
        parts.append(f"![Accuracy against bytes of this run](images/examples/{script.stem}.png)")
    return "\n\n".join(parts)


def main() -> None:
    """Run the examples and write page and pictures."""
    PICTURES.mkdir(exist_ok=True)
    entries = []
    for script in sorted(EXAMPLES.glob("*.py")):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            output = "" if script.stem in NOT_RUN else output_of(script, home)
            found = sorted(home.glob("fedstats-runs/*/plots/accuracy-vs-megabytes.png"))
            if found:
                shutil.copy(found[-1], PICTURES / f"{script.stem}.png")
            entries.append(entry(script, output, bool(found)))
    PAGE.write_text(_HEAD + "\n" + "\n\n".join(entries) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
