"""A second masked sum after the solve: scores of all sites together, and what a hostile server gets of single ones."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict

from fedstats_app import client_app
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.client import evaluation
from fedstats_app.client import secure_sums as client_secure_sums
from fedstats_app.client.site import ClientSplit
from fedstats_app.grid.asking import to_all
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads import ClientScores, ConfusionMatrix, HeadScores, LinearHead
from fedstats_app.heads.leave_one_out import LeaveOneOut
from fedstats_app.heads.paired import paired_p_value
from fedstats_app.heads.summed_scores import SummedScores
from fedstats_app.methods import METHODS
from fedstats_app.report.head_file import LABEL_MARGINS, read_head
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.strategies import secure_sums
from fedstats_app.strategies.secure_scores import _as_different
from fedstats_app.strategies.secure_sums import NothingUnmasked, SecureStatisticsStrategy
from fedstats_app.testing import LocalGrid
from fedstats_app.wire import Limits, RejectedRequest, StatisticsRequest
from fedstats_app.wire.arrays import to_array
from fedstats_app.wire.secure import (
    HELD_OUT,
    SECURE_SCORES,
    SECURE_SUMS,
    SumRequest,
    question_text,
    read_question,
    sums_content,
)
from tests.server.test_exact_sums import weights
from tests.server.test_secure_sums import CLASSES, OPTIONS, WAITS, dying, killed_at
from tests.support.simulation import nodes_of, read_json, simulate, with_keys

WRONG = {"a": 35, "b": 69, "c": 40}
OWN: dict[str, Any] = {"method": "fed3r,fedncm", "max_client_samples": 1000, "min_clients": 3}
SECURE = {"secure_sums": "on"}
LEFT_OUT = {**OWN, "holdout_fraction": 0}
MASKED = {**LEFT_OUT, **SECURE}


def sites(tmp_path: Path, names: str = "abcde", images: int = 14, **options: object) -> list[Mapping[str, object]]:
    return nodes_of(tmp_path, names, CLASSES, images=images, **{"min_gram_samples": 0, **options})


def mixed(nodes: list[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Give some images a wrong class, so that not all is right."""
    for node in nodes:
        for number in range(4):
            first, second = (Path(str(node["data-path"])) / name / f"{number}.png" for name in CLASSES[:2])
            content = first.read_bytes(), second.read_bytes()
            first.write_bytes(content[1])
            second.write_bytes(content[0])
    return nodes


def left_out(folder: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = read_json(folder, "results.json")["leave_one_out"]
    return found


def margins(folder: Path, name: str = "fed3r") -> dict[str, Any]:
    """The histogram by which `fedstats predict --coverage` makes its sets."""
    metadata = read_head(folder / "heads" / f"{name}.safetensors")[1]
    return dict(json.loads(metadata[LABEL_MARGINS]))


@pytest.mark.parametrize("floor", [0, 5])
def test_scores_are_those_that_the_sites_send_in_clear(tmp_path: Path, floor: int) -> None:
    nodes = mixed(sites(tmp_path, min_class_count=floor))
    clear = simulate(tmp_path, node_configs=nodes, **LEFT_OUT, exact_sums=True)
    masked = simulate(tmp_path, node_configs=nodes, **MASKED)

    assert weights(masked) == weights(clear)
    found = left_out(masked)
    assert found is not None and found == left_out(clear)
    assert found["num_examples"] == 5 * 3 * 14 and 0.5 < found["accuracy"] < 0.9
    assert margins(masked)["pooled"] == margins(clear)["pooled"]
    for folder in (masked, clear):
        found = read_json(folder, "results.json")
        assert found["methods"]["fed3r"]["calibration"]["temperature"] > 0 and found["advice"]["method"] == "fed3r"
    assert read_json(masked, "results.json")["evaluation_examples"] == {}
    lines = map(json.loads, (masked / "disclosure.jsonl").read_text().splitlines())
    assert not {"evaluate.heads", "query.statistics"} & {line.get("message") for line in lines}


@pytest.mark.parametrize("floor", [0, 5])
def test_scores_on_samples_held_out_are_those_in_clear_too(tmp_path: Path, floor: int) -> None:
    nodes = mixed(sites(tmp_path, images=30, min_class_count=floor))
    runs = [simulate(tmp_path, node_configs=nodes, **OWN, **sums) for sums in ({"exact_sums": True}, SECURE)]

    assert weights(runs[0]) == weights(runs[1])
    clear, masked = (read_json(folder, "results.json") for folder in runs)
    assert masked["evaluated_on"] == clear["evaluated_on"] == "clients"
    assert masked["num_test_examples"] == clear["num_test_examples"] >= 5 * 3 * 5
    for name in ("fed3r", "fedncm"):
        found, plain = masked["methods"][name], clear["methods"][name]
        assert found["accuracy"] == plain["accuracy"] < 1.0 and found["accuracy_interval"]
        assert found["calibration"]["temperature"] > 0
        # Of each class perhaps one site holds samples out.
        assert found["per_class_examples"] == found["per_class_accuracy"] == [] and found["client_accuracy"] is None
        assert margins(runs[0], name)["pooled"] == margins(runs[1], name)["pooled"]


def test_heads_that_differ_by_far_are_told_apart_and_those_that_may_not_are_not() -> None:
    """As if no sample were wrong for both: of 35 and of 69 wrong ones of 311, and of 35 and of 40."""
    right = {name: ConfusionMatrix(torch.zeros(2, 2).long(), 311, 311 - wrong) for name, wrong in WRONG.items()}
    found = _as_different({name: replace(HeadScores.zeros(2), confusion=own) for name, own in right.items()})
    assert {name: int((~own).sum()) for name, own in found.items()} == WRONG
    assert not any(bool((~found["a"] & ~found[other]).any()) for other in ("b", "c"))
    p_values = {other: paired_p_value(found["a"].int() - found[other].int()) for other in ("b", "c")}
    assert p_values["b"] < 0.01 and p_values["c"] > 0.5


def test_where_two_sites_hold_samples_out_nothing_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few, many = sites(tmp_path, "abc", images=6), sites(tmp_path, "de", images=30)
    folder = simulate(tmp_path, node_configs=[*few, *many], **OWN, **SECURE)
    assert read_json(folder, "results.json")["evaluated_on"] == ""
    assert "not evaluated: fewer than 3 clients keep samples aside" in capsys.readouterr().out


def test_sums_with_and_without_samples_held_out_are_not_subtracted(tmp_path: Path) -> None:
    nodes = sites(tmp_path, images=30)
    simulate(tmp_path, node_configs=nodes, **OWN, **SECURE)
    with pytest.raises(TooFewClients, match="holdout-fraction for this node's secure sums must be above 0, as for"):
        simulate(tmp_path, node_configs=nodes, **MASKED)
    # Nor by a class of this name.
    request = StatisticsRequest(4, StatisticsSpec(fraction_bits=8), "float64", class_names=(*CLASSES, HELD_OUT))
    with pytest.raises(RejectedRequest, match="no class has the name"):
        read_question(question_text(request, SumRequest(100, 1.0)))


@pytest.mark.parametrize("options", [SECURE, MASKED], ids=["held out", "in the sum"])
def test_a_site_that_can_read_no_sample_to_be_scored_says_so(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others count on it as one of three."""
    honest, times = evaluation.evaluate_heads, itertools.count()

    def unreadable(reader: FeatureReader, split: ClientSplit, *rest: Any, **options: Any) -> dict[str, ClientScores]:
        if next(times) == 0:
            ants = split.dataset.labels[split.kept] == 0
            split = replace(split, kept=split.kept[~ants], held_out=split.held_out[:0])
        return honest(reader, split, *rest, **options)

    monkeypatch.setattr(client_secure_sums, "evaluate_heads", unreadable)
    folder = simulate(tmp_path, node_configs=sites(tmp_path, "abc", images=30), **{**OWN, **options})
    assert read_json(folder, "results.json")["evaluated_on"] == "" and left_out(folder) is None
    assert "images that cannot be read leave too few samples to be scored" in caplog.text


def test_clients_lost_at_the_scores_cost_theirs_only(tmp_path: Path) -> None:
    options = {**OPTIONS, "method": "fed3r", "holdout_fraction": 0}
    whole = simulate(tmp_path, **options, secure_sums="on")
    some = simulate(tmp_path, **options, secure_sums="on", app=dying({2, 5, 9}, "secure_scores"))
    assert weights(whole) == weights(some)
    assert left_out(whole)["num_examples"] == 1000 and left_out(some)["num_examples"] == 700  # type: ignore[index]


def test_without_scores_a_run_ends_as_without_test_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores over four of five sites, with the statistics over five, would tell of the fifth."""
    nodes = sites(tmp_path)
    folder = simulate(tmp_path, node_configs=nodes, **MASKED, app=killed_at("secure_scores", "e"))
    assert left_out(folder) is None and len(weights(folder)) == 2
    assert "not evaluated: a sum stays masked" in capsys.readouterr().out


def test_sites_that_know_each_other_sign_for_the_heads(tmp_path: Path) -> None:
    nodes = [dict(node) for node in sites(tmp_path, "abcdef", secure_min_clients=3)]
    with_keys(tmp_path, nodes)
    found = left_out(simulate(tmp_path, node_configs=list(nodes), **MASKED))
    assert found is not None and found["num_examples"] == 6 * 3 * 14


# A server that asks what it likes


def test_of_a_site_that_is_sent_another_head_nothing_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def two_faced(content: RecordDict, kind: str, clients: Iterable[int]) -> list[Message]:
        first, *others = to_all(content, kind, clients)
        if kind == SECURE_SCORES:
            record = content.array_records["head.fed3r"]
            head = ArrayRecord({**record, "weight": to_array(-torch.from_numpy(record["weight"].numpy()))})
            [first] = to_all(RecordDict({**content, "head.fed3r": head}), kind, [first.metadata.dst_node_id])
        return [first, *others]

    monkeypatch.setattr(secure_sums, "to_all", two_faced)
    folder = simulate(tmp_path, node_configs=sites(tmp_path), **MASKED)
    assert left_out(folder) is None
    assert "not evaluated: a sum of scores is out of its range" in capsys.readouterr().out


@dataclass
class Hostile:
    """A server that asks sites with data of their own for scores of heads that it makes up."""

    nodes: Sequence[Mapping[str, object]]
    folder: Path
    class_names: tuple[str, ...] = CLASSES
    holdout: float = 0.0

    def __post_init__(self) -> None:
        options = {"backbone": "random:tiny", "input-size": 16, "cache-dir": str(self.folder / "cache")}
        self.config = {**AppConfig().to_run_config(), **options}
        self.backbone = loaded_backbone(AppConfig.from_run_config(self.config).backbone_for(own_data=True))

    def strategy(self) -> SecureStatisticsStrategy:
        options: dict[str, Any] = {
            "feature_dim": self.backbone.feature_dim,
            "class_names": self.class_names,
            "holdout": self.holdout,
            "backbone_fingerprint": self.backbone.fingerprint,
            "limits": Limits(100.0),
        }
        methods = [METHODS["fed3r"].default()]
        return SecureStatisticsStrategy(len(self.class_names), methods, exact_samples=1000, **options)

    def begun(self, number: int, *, summed: bool) -> SecureStatisticsStrategy:
        """Begin a run of masks among the first sites; the sum of their statistics stays masked unless ``summed``."""
        inner = LocalGrid(client_app.app, self.nodes[:number], self.config)
        grid = ClientGrid(inner, dict(enumerate(sorted(inner.contexts))))
        strategy = self.strategy()
        if summed:
            strategy.collect(grid)
            return strategy
        run, shapes = strategy.masked_run(grid), strategy._layout.shapes(3)
        agreed = run.begin(range(number))
        run.added(sums_content(agreed.plan, 0, agreed.active), SECURE_SUMS, {own: own for own in range(number)}, shapes)
        strategy.after = run, replace(agreed, turn=1)
        return strategy

    def scores(self, strategy: SecureStatisticsStrategy, seed: int = 0) -> SummedScores:
        dim, draw = self.backbone.feature_dim, torch.Generator().manual_seed(seed)
        head = LinearHead(torch.randn(3, dim, generator=draw).double(), torch.zeros(3).double())
        nothing = LeaveOneOut(torch.zeros(dim, dim).double(), torch.ones(3).double())
        [numbers] = strategy.summed_scores({"fed3r": head}, nothing).values()
        return SummedScores.from_numbers(numbers, 3)


def test_samples_held_out_are_of_all_of_a_site_s_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else the scores with a class less those without it would be of the only site that holds some of it out."""
    nodes = [*nodes_of(tmp_path, "abcd", CLASSES[:2], images=30), *sites(tmp_path, "e", images=30)]
    run, agreed = Hostile(nodes, tmp_path, CLASSES[:2], holdout=0.2).begun(5, summed=True).after
    assert len(agreed.active) == 4 and [*run.failures] == [4]
    assert "samples of 1 classes that are not among the 2 allowed ones" in caplog.text


def test_each_head_counts_once_in_a_site_s_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same again, in another run of masks, tells nothing new; in the same run its masks are another's."""
    server = Hostile(sites(tmp_path, max_heads_scored=2), tmp_path)
    strategy = server.begun(5, summed=True)
    first = server.scores(strategy)
    assert torch.equal(server.scores(server.begun(5, summed=True)).numbers, first.numbers)
    with pytest.raises(NothingUnmasked):
        server.scores(strategy)
    assert "of this run of masks are known, and are not unmasked twice" in caplog.text

    strategy = server.begun(5, summed=False)
    server.scores(strategy, seed=1)
    with pytest.raises(NothingUnmasked):
        server.scores(strategy, seed=2)
    assert "this node answers at most 2 different scored heads (max-heads-scored)" in caplog.text


@pytest.mark.parametrize("summed", [True, False])
def test_scores_over_one_site_less_wait_for_the_owners(
    tmp_path: Path, summed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With the statistics over five, or with other scores over five, they would tell of the fifth."""
    server = Hostile(sites(tmp_path), tmp_path)
    strategy = server.begun(5, summed=summed)
    server.scores(strategy)
    run, agreed = strategy.after
    strategy.after = run, replace(agreed, active=agreed.active[:4])
    with pytest.raises(NothingUnmasked):
        server.scores(strategy, seed=1)
    assert caplog.text.count(WAITS) == 4
    caplog.clear()
    with pytest.raises(NothingUnmasked):
        server.begun(4, summed=False)
    assert caplog.text.count(WAITS) == 4


def test_scores_of_two_sites_are_not_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Hostile(sites(tmp_path, "abc"), tmp_path)
    strategy = server.begun(3, summed=True)
    run, agreed = strategy.after
    strategy.after = run, replace(agreed, active=agreed.active[:2])
    with pytest.raises(NothingUnmasked):
        server.scores(strategy)
    assert caplog.text.count("of 3 parties at least 3 must be left, got 2") == 2


def test_samples_without_a_sum_are_not_scored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class lists do not say how many sites hold samples of a class out."""
    server = Hostile(sites(tmp_path), tmp_path)
    strategy = server.begun(5, summed=True)
    head = LinearHead(torch.zeros(3, server.backbone.feature_dim).double(), torch.zeros(3).double())
    with pytest.raises(NothingUnmasked):
        strategy.summed_scores({"fed3r": head})
