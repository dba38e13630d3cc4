"""The app bundle that `flwr run` submits and `flwr app publish` uploads: what is in it, and how large."""

import zipfile
from pathlib import Path

from tests.docs.markdown import DOCUMENTS, links
from tests.support.flower import simulation


def test_the_bundle_can_be_published(tmp_path: Path) -> None:
    """Flower's hub takes 10 MB in all, 1 MB per file and 1,000 files; a bundle without its licence is refused."""
    with simulation(tmp_path / "home") as flower:
        root = Path(__file__).parents[1]
        (tmp_path / "out").mkdir()
        built = flower.bash(f"flwr build --app {root}", cwd=tmp_path / "out")
    assert built.returncode == 0, built.output
    (bundle,) = (tmp_path / "out").glob("*.fab")
    assert bundle.stat().st_size < 10_000_000
    with zipfile.ZipFile(bundle) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    assert max(sizes.values()) < 1_000_000 and len(sizes) < 1_000
    assert {"LICENSE", "README.md", "fedstats_app/client_app.py", "fedstats_app/data/builtin/train-00.json"} <= set(
        sizes
    )
    modules = {str(path.relative_to(root)) for path in (root / "fedstats_app").rglob("*.py")}
    assert modules <= set(sizes), "a module is missing from the bundle: some file names are left out by Flower"
    assert not [name for name in sizes if name.startswith(("tests/", "benchmarks/"))]
    # Nothing that the README, or a page of the documents, refers to is left behind, but for what no bundle may hold.
    for page in (root / "README.md", *DOCUMENTS):
        assert str(page.relative_to(root)) in sizes
        for target in links(page):
            named = (page.parent / target.partition("#")[0]).resolve() if not target.startswith("#") else page
            name = str(named.relative_to(root))
            assert name in sizes or (page.name != "README.md" and not bundled(name)), f"{page.name}: {target}"


def bundled(name: str) -> bool:
    """Tell whether Flower lets a file of this name into a bundle."""
    return name.endswith((".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl")) and "test" not in name
