"""`fedstats release` and `merge`: three sites that share nothing but files."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict

import fedstats_app
from fedstats_app import client_app
from fedstats_app.base.files import read_tensors, write_tensors
from fedstats_app.base.option import ConfigError
from fedstats_app.cli import main
from fedstats_app.methods import display_name
from fedstats_app.report.head_file import read_head
from fedstats_app.report.plots import first_stage
from fedstats_app.report.statistics_file import load_statistics
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import KEYS_OF_A_RELEASE, NodeConfig
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.testing import instruction
from fedstats_app.wire import NodeInfo, ReceivedStatistics, StatisticsRequest, read_node_info, read_statistics_reply
from fedstats_app.wire.release import in_words, read_release
from tests.docs.markdown import REPOSITORY, blocks
from tests.support.simulation import clients, head_bytes, read_json, simulate, site_folder

SITES = {"east": ("black", "grey"), "north": ("black", "white"), "south": ("white", "grey")}
SETTINGS = "backbone='random:tiny' input-size=16 plots=false"
Capture = pytest.CaptureFixture[str]


def released(sites: Path, site: str, out: Path, *more: str) -> Path:
    words = ["release", str(sites / site), "--out", str(out), "-c", SETTINGS, *more]
    assert main([*words, "--node-config", f"state-dir='{sites / 'state'}'"]) == 0
    return out


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folders of three sites, their releases, and a folder of test images; they are only read."""
    folder = tmp_path_factory.mktemp("sites")
    for seed, (site, classes) in enumerate(SITES.items()):
        site_folder(folder / site, classes, seed=seed, images=12)
        site_folder(folder / site, ("rare",), seed=seed, images=3)
        released(folder, site, folder / f"{site}.fedstats")
    site_folder(folder / "test", ("black", "grey", "white"), seed=9)
    return folder


def merged(sites: Path, out: Path, *more: str, names: tuple[str, ...] = tuple(SITES)) -> Path:
    files = [str(sites / f"{name}.fedstats") for name in names]
    assert main(["merge", *files, "--out", str(out), "-c", SETTINGS, *more]) == 0
    return out


@pytest.fixture(scope="module")
def run(sites: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the run folder of all three, in another order than by name."""
    out = tmp_path_factory.mktemp("merged") / "our run"
    return merged(sites, out, "--test", str(sites / "test"), names=("south", "north", "east"))


def test_a_merge_gives_the_bytes_of_the_run_over_the_nodes(run: Path, sites: Path, tmp_path: Path) -> None:
    nodes = [{"data-path": str(sites / site), "client-name": site, "state-dir": str(sites / "state")} for site in SITES]
    over_nodes = simulate(tmp_path, node_configs=nodes, test_dataset=f"folder:{sites / 'test'}")

    assert head_bytes(run) == head_bytes(over_nodes)
    scores, expected = (read_json(one, "results.json")["methods"] for one in (run, over_nodes))
    assert {name: one["per_class_accuracy"] for name, one in scores.items()} == {
        name: one["per_class_accuracy"] for name, one in expected.items()
    }
    assert [one["num_suppressed_classes"] for one in clients(run)] == [1, 1, 1]
    assert (run / "report.html").is_file() and read_json(run, "status.json")["state"] == "completed"


def test_a_site_can_join_and_leave(run: Path, sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = merged(sites, tmp_path / "two", names=("east", "north"))
    said = capsys.readouterr().out
    assert "not evaluated: releases hold no samples" in said and "Refused" not in said
    assert f"Take {display_name(fedstats_app.load(two, device='cpu').method)} (not scored)" in said
    three = merged(sites, tmp_path / "three", "-c", f"extend='{two}'", names=("south",))
    assert [one.name for one in load_statistics(three).clients] == ["east", "north", "south"]
    again = merged(sites, tmp_path / "again", "-c", f"extend='{two}'", names=("north", "south"))
    assert sorted(one["outcome"] for one in clients(again)) == ["known", "merged"]
    everyone = load_statistics(run).num_examples
    assert load_statistics(again).num_examples == load_statistics(three).num_examples == everyone
    south = load_statistics(run).clients[-1]
    assert main(["remove", str(run), "--client", f"{south.run}/{south.client}", "--output-dir", str(tmp_path)]) == 0
    [left] = [one for one in tmp_path.iterdir() if one.name not in ("two", "three", "again")]
    assert {one.name for one in load_statistics(left).clients} == {"east", "north"}
    for path in (two / "heads").glob("*.safetensors"):
        assert torch.equal(read_head(path)[0].weight, read_head(left / "heads" / path.name)[0].weight), path.name


def test_what_is_in_a_release_is_said(sites: Path, capsys: Capture) -> None:
    assert main(["release", "--show", str(sites / "east.fedstats")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "name 'east'",
        "samples: 24 of 2 classes: black 12, grey 12",
        "held back: 1 classes",
        "class means, a Gram matrix; enough for FedNCM, Fed3R, FedCOF, FedCGS, FedRoot",
        "the mean of the fewest is of 12",
        "the 2 directions of 24 samples in d = 32 dimensions says enough to pick 20 to 54 % of them out of 8,000",
    ):
        assert words in said, said
    assert "rare" not in said

    assert main(["release", "--show", str(sites / "east.fedstats"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["class_counts"] == {"black": 12, "grey": 12}
    assert document["digest"] == read_release(sites / "east.fedstats").digest


def test_releases_hold_no_samples_to_train_on(sites: Path, tmp_path: Path, capsys: Capture) -> None:
    files = [str(sites / f"{name}.fedstats") for name in SITES]
    words = ["merge", *files, "--out", str(tmp_path / "run"), "-c", SETTINGS, "-c", "fine-tune='probe'"]
    assert main(words) == 2
    assert "FAILED: ValueError: fine-tune: none of the 3 sites in the heads trains" in capsys.readouterr().out


def test_a_release_is_the_owners_only_and_the_same_again(sites: Path, tmp_path: Path) -> None:
    again = released(sites, "east", tmp_path / "east.fedstats")
    assert again.read_bytes() == (sites / "east.fedstats").read_bytes() and again.stat().st_mode & 0o077 == 0
    assert b"/" + b"east" not in again.read_bytes()


def test_what_does_not_fit_is_refused_by_name(sites: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copy(sites / "east.fedstats", tmp_path / "copy.fedstats")
    released(sites, "north", tmp_path / "other.fedstats", "--name", "east")
    released(sites, "north", tmp_path / "larger.fedstats", "-c", "input-size=24")
    released(sites, "south", tmp_path / "means.fedstats", "--method", "fedncm")
    released(sites, "south", tmp_path / "exact.fedstats", "-c", "wire-dtype='float64'")
    (tmp_path / "text.fedstats").write_text("no release")
    east = str(sites / "east.fedstats")
    for name, words in {
        "copy": (east, f"{tmp_path}/copy.fedstats", " and ", "the very same statistics"),
        "other": (east, f"{tmp_path}/other.fedstats", " and ", "a site of the same name"),
        "larger": (f"{tmp_path}/larger.fedstats is of network", "--backbone"),
        "means": (f"{tmp_path}/means.fedstats has class means;", "it lacks: class means, a Gram matrix (--method)"),
        "exact": (f"{tmp_path}/exact.fedstats is in float64", "wire-dtype"),
        "text": (f"{tmp_path}/text.fedstats", "not a readable safetensors file"),
        "nowhere": ("nowhere.fedstats", "must be a file that `fedstats release` made"),
    }.items():
        capsys.readouterr()
        words_of = ["merge", east, str(tmp_path / f"{name}.fedstats"), "--out", str(tmp_path / "no"), "-c", SETTINGS]
        assert main([*words_of, "--method", "fed3r"]) == 2
        said = capsys.readouterr().err
        assert all(one in said for one in words), said
        assert not (tmp_path / "no").exists()
    assert main(["merge", east, "--out", str(sites), "-c", SETTINGS]) == 2
    assert "is there already" in capsys.readouterr().err


def test_nothing_is_released_where_nothing_may_leave(tmp_path: Path, capsys: Capture) -> None:
    site_folder(tmp_path / "few", ("a", "b"), seed=1, images=4)
    words = ["release", str(tmp_path / "few"), "--out", str(tmp_path / "few.fedstats"), "-c", SETTINGS]
    assert main(words) == 2 and "every class has fewer samples than min-class-count" in capsys.readouterr().err
    assert main([*words[:1], str(tmp_path / "nothing"), *words[2:]]) == 2
    assert "nothing is at" in capsys.readouterr().err and not (tmp_path / "few.fedstats").exists()


def test_the_readme_s_five_commands_end_in_a_prediction(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, (site, classes) in enumerate(SITES.items()):
        site_folder(tmp_path / site, classes, seed=seed, images=6)
    site_folder(tmp_path / "test", ("black", "grey", "white"), seed=9, images=2)
    shutil.copy(tmp_path / "test" / "grey" / "0.png", tmp_path / "picture.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(first_stage, "write_plots", lambda *_, **__: [])  # most of the time, and not of the promise
    [block] = [block for block in blocks(REPOSITORY / "README.md", "bash") if "fedstats merge" in block.code]
    commands = [shlex.split(line.replace("/data", str(tmp_path))) for line in block.code.splitlines()]
    assert len(commands) == 5
    for program, *words in commands:
        quick = ["--backbone", "random:tiny"] if words[0] in ("release", "merge") else []
        assert program == "fedstats" and main([*words, *quick]) == 0
    [best] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("picture.png")]
    assert best.split()[1] == "grey"


# A node that serves one


def ask(node: dict[str, object], content: RecordDict, kind: str, **settings: object) -> Message:
    config = {**AppConfig().to_run_config(), **settings}
    return client_app.app(instruction(content, kind), Context(1, 4, node, RecordDict(), config))  # type: ignore[arg-type]


CLASSES = ("amber", "white", "grey", "black")
SQRT = AppConfig().configured_methods["fedroot"].specification.scatter
assert SQRT is not None
TINY = {"backbone": "random:tiny", "input-size": 16}


def asked(spec: StatisticsSpec, classes: tuple[str, ...] = CLASSES, **options: object) -> StatisticsRequest:
    values: dict[str, Any] = {"class_names": classes, "wire_dtype": AppConfig().federation.wire_dtype, **options}
    return StatisticsRequest(len(classes), spec, **values)


def answered(node: dict[str, object], request: StatisticsRequest) -> ReceivedStatistics:
    return read_statistics_reply(ask(node, request.to_content(), "query.statistics", **TINY), request)


SPECS = (StatisticsSpec(), StatisticsSpec(True), StatisticsSpec(scatter=SQRT), StatisticsSpec(True, scatter=SQRT))


@pytest.mark.parametrize("spec", SPECS, ids=in_words)
def test_what_a_release_contains_is_answered_from_it(sites: Path, tmp_path: Path, spec: StatisticsSpec) -> None:
    """In whatever order the run numbers the classes, and as a node with the data themselves would."""
    found = answered({"data-path": f"release:{sites / 'east.fedstats'}"}, asked(spec, holdout=0.2))
    expected = answered({"data-path": str(sites / "east"), "state-dir": str(tmp_path)}, asked(spec))
    one, other = found.statistics, expected.statistics
    assert found.num_examples == expected.num_examples == 24
    assert one.rows.class_ids.tolist() == [2, 3] and torch.equal(one.rows.class_sums, other.rows.class_sums)
    assert one.has_gram == spec.gram and (one.scatter is not None or spec.scatter is None)
    if one.gram is not None and other.gram is not None:
        assert torch.allclose(one.gram, other.gram, rtol=1e-2, atol=1e-2)  # of directions in few bits
    if one.scatter is not None and other.scatter is not None:
        assert torch.allclose(
            one.scatter.values, other.scatter.values, rtol=1e-2, atol=1e-2
        )  # of a Gram matrix in few bits


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (asked(StatisticsSpec(means_per_class=2)), "several means per class: not in this release, which has class"),
        (asked(StatisticsSpec(), wire_dtype="float64"), "this release is in float16 (wire-dtype), asked for"),
        (asked(StatisticsSpec(), backbone_fingerprint="5f" * 32), "this release is of backbone random:tiny"),
        (asked(StatisticsSpec(), classes=("grey",)), "this release has 2 classes, ['black'] among them"),
        (StatisticsRequest(3, wire_dtype="float16"), "this release has 2 classes"),
    ],
)
def test_what_it_does_not_contain_is_refused_by_name(sites: Path, request_: StatisticsRequest, reason: str) -> None:
    reply = ask({"data-path": f"release:{sites / 'east.fedstats'}"}, request_.to_content(), "query.statistics")
    assert reply.error.reason.startswith("RefusedByPolicy: ") and reason in reply.error.reason


def test_a_node_that_serves_a_release_says_its_classes_and_refuses_all_that_needs_samples(sites: Path) -> None:
    node: dict[str, object] = {"data-path": f"release:{sites / 'east.fedstats'}"}
    info = read_node_info(ask(node, RecordDict(), "query.clients"))
    assert info == NodeInfo(class_names=("black", "grey"), trains=False, evaluates=False, client_name="east")
    for kind in [kind for kind in client_app.ANSWERS if kind != "query.statistics"]:
        reason = ask(node, RecordDict(), kind).error.reason
        assert reason.startswith(f"RefusedByPolicy: {kind}: this node serves a release, which holds statistics and no")
    cautious = ask(node, asked(StatisticsSpec()).to_content(), "query.statistics", **{"min-class-count": 13})
    assert "min-class-count: the run asks for 13 samples a class" in cautious.error.reason
    lost = ask({"data-path": f"release:{sites / 'lost'}"}, RecordDict(), "query.clients").error.reason
    assert lost == "ValueError: the reason is in the log of this node"


@pytest.mark.parametrize("key", sorted(NodeConfig.keys().keys() - KEYS_OF_A_RELEASE))
def test_a_node_that_serves_a_release_refuses_keys_that_it_would_ignore(key: str) -> None:
    with pytest.raises(ConfigError, match=f"^node-config: {key}: not for a node that serves a release$"):
        NodeConfig.from_node_config({"data-path": "release:/x", "client-name": "x", key: 1})


# What comes from anybody


def changed(path: Path, to: Path, *, tensors: dict[str, torch.Tensor] | None = None, **metadata: str | None) -> Path:
    """Write a release with other values, under a sha256 that is right."""
    found, header = read_tensors(path)
    header = {name: text for name, text in {**header, **metadata}.items() if text is not None}
    write_tensors(to, {**found, **(tensors or {})}, header)
    return to


@pytest.mark.parametrize(
    ("metadata", "tensors", "reason"),
    [
        ({"format": "fedstats-release-1"}, {}, "format: must be 'fedstats-release-2'"),
        ({"node": None}, {}, "header: must have the keys"),
        ({"code": "import os"}, {}, r"unexpected \['code'\]"),
        ({"node": "[" * 100_000}, {}, "no release that can be used"),
        ({"node": "[1]"}, {}, "node: must be an object"),
        ({"node": '{"class-names": ["black", "a\\nb"]}'}, {}, "class-names: must have 1 to 200 printable"),
        ({"node": '{"class-names": ["black"]}'}, {}, "request: must be about everything of the site's classes"),
        ({"metrics": '{"num-examples": 25, "num-unreadable": 0, "seconds": 0.1}'}, {}, "must sum to num-examples 25"),
        ({"about": '{"engine": "torch"}'}, {}, "backbone: must be the server's"),
        ({}, {"statistics.counts": torch.tensor([10**9, 14])}, "counts: must lie in"),
        ({}, {"statistics.class-sums": torch.full((2, 32), torch.nan, dtype=torch.float16)}, "must be finite"),
        ({}, {"statistics.class-sums": torch.zeros(2, 32, dtype=torch.bfloat16)}, "no release that can be used"),
        ({}, {"statistics-1.counts": torch.tensor([1])}, r"unexpected \['statistics-1'\]"),
        ({}, {"about.counts": torch.tensor([1])}, "about.counts: must be an array of statistics"),
    ],
)
def test_a_forged_file(
    sites: Path, tmp_path: Path, metadata: dict[str, str], tensors: dict[str, torch.Tensor], reason: str
) -> None:
    path = changed(sites / "east.fedstats", tmp_path / "forged.fedstats", tensors=tensors, **metadata)
    with pytest.raises(ValueError, match=rf"forged.fedstats: .*{reason}"):
        read_release(path)
