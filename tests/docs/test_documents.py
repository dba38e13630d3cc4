"""The documents say what is so: their code runs, their commands parse, their keys, links and numbers are right."""

import contextlib
import io
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from flwr.cli.app import app as flwr
from flwr.common.config import parse_config_args

import fedstats_app
from fedstats_app.backbones.backbone_options import BACKBONES
from fedstats_app.base.option import flattened
from fedstats_app.data import PARTITIONERS
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire import StatisticsRequest
from fedstats_app.wire.reading import to_values
from tests.docs.markdown import DOCS, DOCUMENTS, REPOSITORY, anchors, blocks, commands, inline_code, items, links, prose
from tests.support.small_sample import whole_sample

README, RUN_FOLDER = REPOSITORY / "README.md", DOCS / "run-folder.md"
SETTINGS = (DOCS / "settings.md").read_text(encoding="utf-8")
EXPERIMENTS = sorted((REPOSITORY / "conf").glob("*.toml"))
DEFAULTS = AppConfig().to_run_config()
# These pages' blocks are files of an app or of the package; tests beside this one run them as such.
RUN_ELSEWHERE = ("own-client-app.md", "testing.md", "add-a-method.md", "export.md")


def name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def run(code: str, where: str, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, where, "exec"), namespace)
    return printed.getvalue()


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if blocks(path, "python") and path.name not in RUN_ELSEWHERE], ids=name
)
def test_python_blocks_run_and_print_what_they_say(path: Path, home: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with whole_sample():
        for block in blocks(path, "python"):
            printed = run(block.code, f"{name(path)}:{block.line}", namespace)
            if block.output is not None:
                assert printed == block.output, f"{name(path)}:{block.line}"


def test_the_page_of_the_run_folder_predicts_the_class_of_the_picture(home: Path) -> None:
    [block] = [block for block in blocks(DOCS / "run-folder.md", "python") if "fedstats_app.load" in block.code]
    assert run(block.code, "run-folder", {}) == "red\n"


def test_links_lead_somewhere() -> None:
    broken = []
    for path in (README, *DOCUMENTS):
        for target in links(path):
            file, _, anchor = target.partition("#")
            found = (path.parent / file).resolve() if file else path
            if not found.exists() or (anchor and anchor not in anchors(found)):
                broken.append((name(path), target))
    assert not broken


@pytest.mark.parametrize("index", [DOCS / "index.md", REPOSITORY / "research" / "README.md"], ids=name)
def test_every_page_is_reached_from_the_index(index: Path) -> None:
    targets = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
    assert {path for path in DOCUMENTS if path.is_relative_to(index.parent)} - targets == {index}


def test_every_run_config_key_is_documented() -> None:
    words = {word for path in DOCUMENTS for code in inline_code(path) for word in re.split(r"[\s=]", code)}
    assert set(DEFAULTS) - words == set()


def test_keys_that_are_explained_are_keys() -> None:
    listed = [key for key, _ in items(DOCS / "methods" / "fine-tuning.md", "Training from the head")]
    assert listed and {key.strip("`") for key in listed} <= set(DEFAULTS)


def test_partitioners_described_are_all_there_are() -> None:
    described = [re.findall(r"`([^`]+)`", item[0]) for item in items(DOCS / "data.md", "Partitions")]
    assert {names[0] for names in described} == set(PARTITIONERS)
    assert {key for names in described for key in names[1:]} <= set(DEFAULTS)


def test_every_backbone_is_listed() -> None:
    [line] = [line for line in SETTINGS.splitlines() if line.startswith("- `backbone=")]
    prefixes = {f"{prefix}:NAME" for prefix in ("timm", "vision", "random", "sentence", "transformers")}
    assert ({*BACKBONES} | prefixes) - set(re.findall(r"[\w-]+(?::NAME)?", line)) == set()


def test_hyphenated_words_in_code_are_names_that_exist() -> None:
    files = [file for room in ("fedstats_app", "research") for file in (REPOSITORY / room).rglob("*.py")]
    # Keys of a record are its fields, spelt with hyphens.
    sources = "\n".join(
        re.sub(r"\b[a-z]+(_[a-z]+)+(?=: )", lambda field: f'"{field[0].replace("_", "-")}"', file.read_text())
        for file in files
    )
    # Keys of requests are made of the names of fields.
    requests = to_values(MezoSetup(TrainingRequest(2))) | to_values(StatisticsRequest(2))
    deviations = tomllib.loads((REPOSITORY / "research" / "presets" / "catalogue.toml").read_text())["deviations"]
    known = {*DEFAULTS, *requests, *NodeConfig.keys(), *simulation_options(), *deviations}
    named = [(name(path), code) for path in (README, *DOCUMENTS) for code in inline_code(path)]
    words = {(page, code) for page, code in named if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", code)}
    assert {
        (page, word) for page, word in words if word not in known | {"flower-superlink"} and f'"{word}"' not in sources
    } == set()


def test_settings_in_the_text_are_accepted() -> None:
    codes = {code for path in (README, *DOCUMENTS) for code in inline_code(path)}
    for setting in (re.fullmatch(r"([a-z0-9.-]+) ?= ?(\S.*)", code) for code in codes):
        if setting and setting[2][0] in "\"'-0123456789tf":  # a TOML value, not a keyword argument's expression
            AppConfig.from_run_config(tomllib.loads(f"{setting[1]} = {setting[2]}"))


def flwr_command(*words: str) -> Any:
    command: Any = typer.main.get_command(flwr)
    for word in words:
        command = command.commands[word]
    return command


def simulation_options() -> set[str]:
    parameters = flwr_command("federation", "simulation-config").params
    return {option.removeprefix("--") for parameter in parameters for option in parameter.opts}


COMMANDS = [(path, command) for path in (README, *DOCUMENTS) for command in commands(path)]
for path in EXPERIMENTS:
    lines = [line.lstrip("# ").strip() for line in path.read_text().splitlines()]
    COMMANDS += [(path, line) for line in lines if line.startswith("flwr run")]


@pytest.mark.parametrize("path", dict.fromkeys(path for path, _ in COMMANDS), ids=name)
def test_commands_parse(path: Path) -> None:
    run_command, options = flwr_command("run"), simulation_options()
    for command in dict.fromkeys(command for page, command in COMMANDS if page == path):
        parsed = run_command.make_context("run", shlex.split(command.replace("$DIR", "/folder"))[2:]).params
        values = {option: parsed[parameter.name] for parameter in run_command.params for option in parameter.opts}
        assert parsed["app"] == ".", command
        given = list(values["--run-config"] or [])
        if given and given[0].endswith(".toml"):
            assert len(given) == 1, "Flower takes a file or key-value pairs, not both"
            given = [str(REPOSITORY / given[0])]
        overrides = parse_config_args(given)
        assert (overrides or not given) and set(overrides) <= set(DEFAULTS), command
        AppConfig.from_run_config({**DEFAULTS, **overrides})
        assert set(parse_config_args(values["--federation-config"])) <= options, command


def test_there_are_commands_to_check() -> None:
    assert {path for path, _ in COMMANDS} >= {README, DOCS / "guide.md", *EXPERIMENTS}


def test_experiments_are_valid_and_in_the_guide() -> None:
    for path in EXPERIMENTS:
        settings = tomllib.loads(path.read_text())
        assert AppConfig.from_run_config({**DEFAULTS, **flattened(settings)}) != AppConfig.from_run_config(DEFAULTS), (
            path
        )
        assert f"../conf/{path.name}" in links(DOCS / "guide.md")


def test_run_folder_is_as_its_page_says(finished_run: Path, mezo_run: Path) -> None:
    described = dict(items(RUN_FOLDER, "The run folder"))
    names = {"heads": "heads/METHOD.safetensors", "checkpoints": "checkpoints/", "clients": "clients/"}
    files = set()
    for path in (path.relative_to(finished_run) for path in finished_run.rglob("*") if path.is_file()):
        of_many = path.suffix == ".safetensors" and len(path.parts) > 1
        files.add(names[path.parts[0]] if of_many else path.as_posix())
    replica = {path.name for path in (mezo_run / "mezo" / "fedncm-fedmezo").iterdir()}
    assert replica == {"log.bin", "sizes.jsonl", "start.safetensors"}
    files.add("mezo/NAME/")
    assert {file.strip("`") for file in described} == files | {"plots/*.png"}
    results = json.loads((finished_run / "results.json").read_text())
    metrics = " ".join(item[0] for item in items(RUN_FOLDER, "Metrics"))
    words = set(re.findall(r"`([a-z_0-9]+)`", described["`results.json`"] + metrics))
    assert words == set(results) | set(results["methods"]["fed3r"])
    status = json.loads((finished_run / "status.json").read_text())
    words = set(re.findall(r"`([a-z]+)`", described["`status.json`"]))
    assert words == {"state", "reason", "running", "completed", "failed", "stopped"} and status["state"] == "completed"


def test_citation_and_changelog_are_of_this_version() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == fedstats_app.__version__
    newest = re.search(r"^## \[(.+?)\]", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest[1] == fedstats_app.__version__


def test_the_classifiers_name_the_versions_of_python_that_are_required() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    low, below = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"]).groups()  # type: ignore[union-attr]
    named = {f"Programming Language :: Python :: 3.{minor}" for minor in range(int(low), int(below))}
    assert named == {one for one in project["classifiers"] if re.search(r":: 3\.\d+$", one)}


def test_cited_papers_are_those_of_the_method_pages() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    for paper in citation["references"]:
        page = " ".join(prose(DOCS / "methods" / f"{paper['notes'].lower()}.md").split())
        assert f"*{paper['title']}*" in page
        assert paper.get("url", "") in page  # the thesis has none that we know
        assert all(author["family-names"] in page for author in paper["authors"])
