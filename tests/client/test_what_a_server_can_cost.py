"""What a request can make a node compute, keep and send is bounded, and a refused one leaves nothing behind."""

import tomllib
from pathlib import Path

import pytest
import torch
from flwr.app import Message

import fedstats_app.backbones.backbone as backbone_module
from fedstats_app.base.rank_rule import RankRule
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.heads import LinearHead
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import ScatterSpec, StatisticsSpec
from fedstats_app.training.limits import RefusedByPolicy, RequestLimits
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.wire import StatisticsRequest
from fedstats_app.wire.evaluation import MAX_HEADS, evaluation_content
from fedstats_app.wire.mezo import MezoRequest
from tests.support.hostile_server import CLASSES, Victim

DIM = 32
PRESETS = sorted((Path(__file__).parents[2] / "conf").glob("*.toml"))
START = {"head.weight": torch.zeros(2, DIM), "head.bias": torch.zeros(2)}
FORMS = {
    "a Gram matrix": StatisticsSpec(gram=True),
    "a factor of the scatter": StatisticsSpec(scatter=ScatterSpec(RankRule("full"))),
}


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Victim:
    return Victim.of(tmp_path_factory.mktemp("victim"), images=20, min_gram_samples=41, train=True)


def kept(victim: Victim) -> list[str]:
    """Return what lies in the node's state-dir, but for its ledger."""
    paths = (path.relative_to(victim.state).as_posix() for path in victim.state.rglob("*"))
    return sorted(path for path in paths if not path.startswith(("ledger", "sent-")))


def statistics(victim: Victim, spec: StatisticsSpec, num_classes: int = 2) -> Message:
    names = CLASSES if num_classes == 2 else ()
    return victim.ask(StatisticsRequest(num_classes, spec, class_names=names).to_content(), "query.statistics")


def mezo(victim: Victim, start: dict[str, torch.Tensor], training: int = 0, **settings: int) -> Message:
    setup = MezoSetup(TrainingRequest(2, class_names=CLASSES), **settings)
    return victim.ask(MezoRequest(training, 1, 7, setup=setup, start=start).to_content(), "train.mezo")


@pytest.mark.parametrize("what", FORMS)
def test_of_few_samples_few_directions_leave_in_every_form(victim: Victim, what: str) -> None:
    """A tenth of the samples beyond the rows: of 40 in two classes three."""
    record = statistics(victim, FORMS[what]).content["statistics"]

    assert not any(key.startswith("gram") for key in record)
    assert len(record["scatter-values"].numpy()) == 3 and float(record["scatter-left-out"].numpy()) > 0.0


def test_of_few_samples_nothing_of_mapped_features_leaves(victim: Victim) -> None:
    """The sum of a class's 400 random features says as much of its 20 samples as 400 numbers can."""
    reason = "statistics of mapped features (feature-map): this node has too few samples for it (min-gram-samples)"
    mapped = Victim(victim.path, victim.rules, {"feature_map": "fourier:400:1.0"})

    assert statistics(mapped, StatisticsSpec()).error.reason == f"RefusedByPolicy: {reason}"
    assert not statistics(victim, StatisticsSpec()).has_error()


def test_more_features_than_the_bound_are_refused_first(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbone_module, "MappedFeatures", lambda *_: pytest.fail("the map was drawn"))
    wide = Victim(victim.path, victim.rules, {"feature_map": "relu:10001"})

    for reply in (statistics(wide, StatisticsSpec()), mezo(wide, START)):
        assert "features of the feature-map: must be at most 10000" in reply.error.reason


def test_more_classes_than_the_bound_are_refused(victim: Victim) -> None:
    """A confusion matrix of a million classes takes eight terabytes."""
    for reply in (
        statistics(victim, StatisticsSpec(), num_classes=1_000_000),
        victim.ask(StatisticsRequest(1_000_000, StatisticsSpec()).to_content(), "evaluate.heads"),
    ):
        assert reply.error.reason == "RefusedByPolicy: classes: must be at most 10000, got 1e+06"


def test_a_message_brings_so_many_heads(victim: Victim) -> None:
    request = StatisticsRequest(2, StatisticsSpec(), class_names=CLASSES)
    head = LinearHead(torch.zeros(2, DIM), torch.zeros(2))

    def ask(number: int) -> Message:
        return victim.ask(evaluation_content(request, {f"h{one}": head for one in range(number)}), "evaluate.heads")

    assert not ask(MAX_HEADS).has_error() and f"at most {MAX_HEADS} heads" in ask(MAX_HEADS + 1).error.reason


@pytest.mark.parametrize(
    ("features", "directions", "reason"),
    [
        (7, 1, "RejectedRequest: the model does not fit"),
        (DIM, 17, "RefusedByPolicy: directions: must be at most 16, got 17"),
    ],
)
def test_a_refused_start_is_not_kept(tmp_path: Path, features: int, directions: int, reason: str) -> None:
    victim = Victim.of(tmp_path, images=20, train=True)

    reply = mezo(victim, {**START, "head.weight": torch.zeros(2, features)}, num_directions=directions)

    assert reply.has_error() and reply.error.reason.startswith(reason)
    assert kept(victim) == []


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_preset_keeps_to_the_limits(path: Path) -> None:
    config, limits = AppConfig.from_run_config(tomllib.loads(path.read_text())), RequestLimits()

    limits.check_training(config.local.with_rate(), num_examples=50_000)
    limits.check_mezo(config.fedmezo.num_z)


def test_a_refused_start_does_not_replace_the_one_that_is_kept(tmp_path: Path) -> None:
    victim = Victim.of(tmp_path, images=20, train=True)
    assert not mezo(victim, START).has_error()
    before = {name: (victim.state / name).read_bytes() for name in kept(victim) if (victim.state / name).is_file()}

    assert mezo(victim, {**START, "head.weight": torch.zeros(2, 7)}).has_error()

    assert before and {name: (victim.state / name).read_bytes() for name in before} == before


def test_a_node_keeps_the_replicas_of_few_trainings(tmp_path: Path) -> None:
    victim = Victim.of(tmp_path, images=20, train=True)

    for training in range(12):
        assert not mezo(victim, START, training).has_error()

    assert len(list(victim.state.glob("mezo-*"))) == 8


def test_a_run_gets_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The factor of a Gram matrix of 40 samples and 2,000 features is 0.6 megabytes."""
    victim = Victim.of(tmp_path, images=20, min_gram_samples=0)
    victim = Victim(victim.path, victim.rules, {"feature_map": "relu:2000"})
    monkeypatch.setattr(NodeConfig, "request_limits", RequestLimits(max_run_megabytes=1))

    def ask(means: int) -> Message:
        spec = StatisticsSpec(gram=True, means_per_class=means)
        request = StatisticsRequest(2, spec, class_names=CLASSES, wire_dtype="float64")
        return victim.ask(request.to_content(), "query.statistics")

    first, second = map(ask, (1, 2))

    assert not first.has_error()
    assert second.error.reason == "RefusedByPolicy: this node has sent as much in this run as it sends in one"


@pytest.mark.parametrize(
    ("epochs", "samples", "reason"),
    [(101, 1, "local-epochs: must be at most 100, got 101"), (100, 16_016, "must be at most 100000, got 100100")],
)
def test_a_call_trains_so_long(epochs: int, samples: int, reason: str) -> None:
    RequestLimits().check_training(LocalOptions(epochs=100, batch_size=16), 16_000)
    with pytest.raises(RefusedByPolicy, match=reason):
        RequestLimits().check_training(LocalOptions(epochs=epochs, batch_size=16), samples)
