"""Every command of a page runs, also after one that fails."""

from pathlib import Path

import pytest

from research.benchmarks.page import REPOSITORY, commands_of, main


def test_all_commands_run_on_the_data_of_this_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "client_sizes.csv").write_text("client,num_images\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```bash\nfalse\ncat /data/client_sizes.csv\n```\n\n```python\n1\n```\n\n```bash\npwd\n```\n"
    )
    assert main(["--data", str(tmp_path), str(page)]) == 1
    printed = [line for line in capfd.readouterr().out.splitlines() if not line.startswith("#")]
    assert printed == ["$ false", "$ cat /data/client_sizes.csv", "client,num_images", "$ pwd", str(REPOSITORY)]


def test_the_pages_measurements_are_found() -> None:
    commands = commands_of((REPOSITORY / "research" / "performance.md").read_text(encoding="utf-8"))
    assert "python -m research.benchmarks.cost" in commands and "python -m research.benchmarks.mezo_bytes" in commands
