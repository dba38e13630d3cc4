"""The scripts of examples/ run, with the smallest networks, and are short."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

import fedstats_app
from fedstats_app.cli.demo.sites import make_sites
from research.gallery import NOT_RUN, PAGE
from tests.docs.markdown import REPOSITORY, Block, blocks

EXAMPLES = REPOSITORY / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def small(tmp_path: Path) -> dict[str, Any]:
    places = {"output-dir": str(tmp_path / "runs"), "cache-dir": str(tmp_path / "cache")}
    return {"backbone": "random:tiny", "input-size": 16, "plots": False, "method": "fedncm,fed3r", **places}


def test_each_is_short_and_has_a_test() -> None:
    scripts = {path.stem: path.read_text() for path in EXAMPLES.glob("*.py")}
    assert all(text.count("\n") < 60 for text in scripts.values())
    assert all(f'example("{name}")' in Path(__file__).read_text() for name in scripts)


def test_own_images(tmp_path: Path, small: dict[str, Any]) -> None:
    make_sites(tmp_path)
    assert example("own_images").main(tmp_path / "images" / "site-a", **small) in ("T-shirt", "Trouser", "Pullover",
                                                                                    "Dress", "Coat")  # fmt: skip


@pytest.mark.extended  # loading a language model takes most of a minute on a busy machine
def test_own_texts(tmp_path: Path, small: dict[str, Any]) -> None:
    pytest.importorskip("transformers", reason="needs the extra `text`")
    module = example("own_texts")
    table = module.make_tickets(tmp_path / "tickets.csv")
    assert len(module.main(table, **{**small, "backbone": "random:tiny-text", "input-size": 0})) == 2


def test_three_hospitals() -> None:
    accuracy = example("three_hospitals").main("random:tiny", 300)
    assert accuracy["together"] > max(share for who, share in accuracy.items() if who != "together")


def test_scikit_learn(capsys: pytest.CaptureFixture[str]) -> None:
    assert min(example("scikit_learn").main().values()) > 0.9
    shown = [block.code for block in blocks(PAGE, "text") if "in a pipeline" in block.code]
    assert shown == [capsys.readouterr().out]


def test_the_page_shows_each_with_its_output_and_the_picture_of_its_run() -> None:
    entries = re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(entries) == len(scripts)
    for entry, script in zip(entries, scripts, strict=True):
        assert f"(../examples/{script.name})" in entry
        assert ("```text" in entry) == (script.stem not in NOT_RUN)
        assert ("![" in entry) == ("fedstats_app.simulate(" in script.read_text() and script.stem not in NOT_RUN)


def test_remove_a_site(small: dict[str, Any]) -> None:
    before, after = (fedstats_app.load(run, "fed3r").head for run in example("remove_a_site").main(**small))
    assert not before.weight.equal(after.weight)


def test_more_data_later(tmp_path: Path, small: dict[str, Any]) -> None:
    assert example("more_data_later").main(tmp_path, **small) == [5, 9]


def test_track_a_run(small: dict[str, Any]) -> None:
    run = fedstats_app.simulate({**small, "num-clients": 4, "fine-tune": "probe", "num-server-rounds": 2})
    writer = Mock()  # no tracker is installed for the tests

    example("track_a_run").main(run, writer)

    points = {call.args[0]: call.args[1:] for call in writer.add_scalar.call_args_list}
    accuracy, step = points["fed3r/accuracy"]
    assert accuracy == json.loads((run / "results.json").read_text())["methods"]["fed3r"]["accuracy"]
    assert step == 1 and {"fed3r-probe/loss", "fed3r-probe/bytes_up", "fedncm/wire_bytes"} <= points.keys()
    assert points["fed3r-probe/loss"][1] == 2


@pytest.mark.parametrize(
    "block", blocks(REPOSITORY / "docs" / "own-client-app.md", "python")[:2], ids=["client", "server"]
)
def test_the_apps_of_the_page_are_those_of_the_folder(block: Block) -> None:
    assert block.file is not None
    code = block.code.removeprefix(f"# {block.file}\n")
    assert code and (EXAMPLES / "own-flower-app" / "own_app" / block.file).read_text().endswith(code)


def test_several_findings(tmp_path: Path, small: dict[str, Any]) -> None:
    module = example("several_findings")
    found = module.main(module.make_tables(tmp_path / "findings", 120), **small)
    assert len(found) == 3 and {name for names in found for name in names.split("|")} <= {*module.FINDINGS, ""}
