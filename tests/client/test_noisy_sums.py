"""Noise at the sites: what a server gains by asking again, of others, otherwise or too much."""

import itertools
import json
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict

from fedstats_app import client_app
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.base.option import ConfigError
from fedstats_app.client import ledger
from fedstats_app.client.ledger import ledger_of
from fedstats_app.client.noisy_sums import _blocks
from fedstats_app.client.site import Site
from fedstats_app.data.clients import own_dataset
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.secure.account import Place, epsilon_of, mu_of
from fedstats_app.secure.party import query_of
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.statistics.noisy_words import NoisyKind, NoisyLayout
from fedstats_app.statistics.secure_words import Words, numbers_of
from fedstats_app.strategies.noisy_sums import clear_sum
from fedstats_app.strategies.secure_sums import Account, MaskedRun, NothingUnmasked
from fedstats_app.testing import FIRST_NODE_ID, Fault, LocalGrid, instruction
from fedstats_app.wire import StatisticsRequest
from fedstats_app.wire.reading import RejectedRequest
from fedstats_app.wire.secure import (
    SECURE_NOISY,
    NoisyRequest,
    question_text,
    read_noisy_request,
    read_question,
    sums_content,
)
from tests.support.simulation import nodes_of, site_folder, with_keys

CLASSES, DELTA = ("ant", "bee", "cat"), 1e-3
MU = mu_of(1.0, DELTA)
ACCOUNT: dict[str, object] = {"dp-max-epsilon": 1.0, "dp-max-delta": DELTA, "dp-classes": ",".join(CLASSES)}
OVER = "account of its data would come to epsilon"


@dataclass
class Begun:
    """Sums that have begun, with the state after the last one."""

    sums: Any
    layout: NoisyLayout
    question: str
    clients: Sequence[int]
    parties: Any = None
    over: tuple[int, ...] = ()

    def summed(self, kind: NoisyKind, mean: torch.Tensor | None = None) -> Words:
        if self.parties is None:
            words, clients = clear_sum(self.sums, self.question, self.clients, self.layout, kind, mean, 1)
            self.over = tuple(clients)
            return words
        found = self.sums.summed(self.parties, kind, lambda number: self.layout.shapes(kind), mean)
        self.parties, self.over = found.agreed, found.over
        return list(found.words)


@dataclass
class Sites:
    """Five sites with data of their own, and a server that asks them what it likes."""

    root: Path
    rules: dict[str, object] = field(default_factory=dict)
    names: str = "abcde"
    where: Place = "sites"
    known: bool = True  # to each other, by their keys

    def __post_init__(self) -> None:
        nodes = nodes_of(self.root, self.names, CLASSES, images=2)
        own = [{"state-dir": str(self.root / "state" / name)} for name in self.names]
        self.nodes = [{**node, **state, **self.rules} for node, state in zip(nodes, own, strict=True)]
        if self.where == "sites" and self.known:
            with_keys(self.root, self.nodes)
        masks = "on" if self.where == "sites" else "off"
        self.settings = AppConfig.of(
            backbone="random:tiny", input_size=16, secure_sums=masks, dp_epsilon=1.0, dp_samples=30, dp_where=self.where
        )
        self.backbone = loaded_backbone(self.settings.backbone_for(own_data=True), self.root)

    def run(
        self, mu: float = MU, *, seed: int = 0, faults: dict[int, Fault] | None = None, moments: bool = True
    ) -> Begun:
        """A run of masks that has begun; its nodes are processes of their own."""
        grid = LocalGrid(client_app.app, self.nodes, self.settings.to_run_config(), faults=faults or {})
        hosts = {number: FIRST_NODE_ID + number for number in range(len(self.nodes))}
        request = StatisticsRequest(
            3,
            StatisticsSpec(moments),
            "float64",
            seed=seed,
            backbone_fingerprint=self.backbone.fingerprint,
            class_names=CLASSES,
        )
        question, clients = question_text(request, NoisyRequest(mu)), range(len(self.nodes))
        layout = NoisyLayout(3, self.backbone.feature_dim, moments=True, mu=mu, salted=self.where == "local")
        if self.where == "local":
            return Begun(Account(ClientGrid(grid, hosts)), layout, question, clients)
        run = MaskedRun(ClientGrid(grid, hosts), question=question, rounds=2)
        return Begun(run, layout, question, clients, run.begin(clients))

    def release(self, mu: float = MU, **options: Any) -> tuple[Words, Words]:
        """Both sums, as they come out."""
        run = self.run(mu, **options)
        mean = run.summed("mean")
        return mean, run.summed("moments", run.layout.read_mean(mean, 30))

    def facts(self, place: int = 0) -> dict[str, str]:
        (path,) = (self.root / "state" / self.names[place]).glob("ledger-*.sqlite")
        with closing(sqlite3.connect(path)) as connection:
            return dict(connection.execute("select name, value from fact").fetchall())

    def charges(self, place: int = 0) -> list[float]:
        return [json.loads(value)[1] for name, value in self.facts(place).items() if name.startswith("dp-spent|")]

    def more_images(self, *places: int) -> None:
        """Give sites a new version of their data: two images more of each class."""
        for place in places:
            extra = Path(site_folder(self.root / f"more-{place}", CLASSES, seed=50 + place, images=2))
            for picture in extra.glob("*/*.png"):
                picture.rename(Path(str(self.nodes[place]["data-path"])) / picture.parent.name / f"new-{picture.name}")
            shutil.rmtree(extra)

    def restart(self) -> None:
        """Forget what processes keep in memory."""
        ledger_of.cache_clear()
        own_dataset.cache_clear()


def same(found: Sequence[Words], other: Sequence[Words]) -> bool:
    pairs = [pair for own, its in zip(found, other, strict=True) for pair in zip(own, its, strict=True)]
    return all(np.array_equal(own, its) for own, its in pairs)


def exact(sites: Sites, mean: torch.Tensor | None) -> list[torch.Tensor]:
    """The same sums without noise, over all images of all sites."""
    layout, total = NoisyLayout(3, sites.backbone.feature_dim, moments=True, mu=MU), None
    request = StatisticsRequest(3, StatisticsSpec(True), class_names=CLASSES)
    for node in sites.nodes:
        site = Site(sites.settings, NodeConfig.from_node_config(node))
        own = layout.sums("mean" if mean is None else "moments", _blocks(site, site.reader(""), request), mean)
        total = own if total is None else [one + two for one, two in zip(total, own, strict=True)]
    assert total is not None
    return total


def test_the_server_gets_all_samples_with_the_noise_that_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class of two images counts in full, though a floor of five would hold it back; all five sites add noise."""
    number = itertools.count()
    monkeypatch.setattr(ledger.secrets, "token_hex", lambda size: next(number).to_bytes(size).hex())
    sites = Sites(tmp_path)
    mean, moments = sites.release()
    layout = NoisyLayout(3, sites.backbone.feature_dim, moments=True, mu=MU)
    wanted = [*exact(sites, None), *exact(sites, layout.read_mean(mean, 30))]
    sizes = [*layout.noise("mean", honest=4), *layout.noise("moments", honest=4)]
    found = zip([*mean, *moments], wanted, sizes, strict=True)
    noise = torch.cat([(numbers_of(words) - without) / size for words, without, size in found])
    assert len(noise) > 600
    # As if one of the five were lost, though none is.
    assert float(noise.std()) == pytest.approx(5**0.5, rel=0.08)


def test_samples_of_classes_that_were_not_declared_are_left_out(tmp_path: Path) -> None:
    """Whether there are any tells nothing: with them the node answers as without."""
    sites = Sites(tmp_path, names="a")
    before = exact(sites, None)
    site_folder(tmp_path / "a", ("rare",), seed=3, images=9)
    sites.restart()
    assert all(torch.equal(own, its) for own, its in zip(exact(sites, None), before, strict=True))


def person_folders(sites: Sites) -> None:
    """Put each site's images of a class below the folder of one person of two."""
    for node in sites.nodes:
        for number, picture in enumerate(sorted(Path(str(node["data-path"])).glob("*/*.png"))):
            target = picture.parent / f"person {number % 2}" / picture.name
            target.parent.mkdir(exist_ok=True)
            picture.rename(target)
    sites.restart()


@pytest.mark.parametrize("unit", [{"dp-unit": "person", "dp-per-person": 2}, {}])
def test_an_account_of_persons_is_charged_for_all_that_one_gives(tmp_path: Path, unit: dict[str, Any]) -> None:
    """With dp-unit = person as many as the run says, else as many as the owner lets one give."""
    sites = Sites(tmp_path, {**ACCOUNT, "person-column": "subfolder", "max-per-person": 3}, names="ab", where="local")
    person_folders(sites)
    sites.settings = AppConfig.from_run_config({**sites.settings.to_run_config(), **unit})
    given = 2 if unit else 3
    sites.release(MU / given)
    assert np.hypot(*sites.charges()) == pytest.approx(MU, rel=1e-12)
    dataset, indices = Site(sites.settings, NodeConfig.from_node_config(sites.nodes[0])).all_samples(CLASSES)
    assert len(dataset) == 6 and len(indices) == 2 * given
    with pytest.raises(TooFewClients, match=OVER):
        sites.release(MU, seed=1)


def test_persons_that_an_owner_does_not_name_are_not_promised_anything(tmp_path: Path) -> None:
    site = Sites(tmp_path, names="a")
    config = AppConfig.of(secure_sums="on", dp_epsilon=1.0, dp_unit="person")
    with pytest.raises(RejectedRequest, match="person-column, which this node's owner does not name"):
        Site(config, NodeConfig.from_node_config(site.nodes[0])).all_samples(CLASSES)


def test_the_same_question_gets_the_same_noise_and_is_charged_once(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    first = sites.release()
    charged = sites.charges()
    assert np.hypot(*charged) == pytest.approx(MU, rel=1e-12)
    sites.restart()
    assert same(sites.release(), first) and sites.charges() == charged
    assert not same(sites.release(seed=1), first) and len(sites.charges()) == 4


def test_the_same_noise_is_not_unmasked_over_other_survivors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The difference of both sums would be one site's, with one share of noise."""
    sites = Sites(tmp_path)
    sites.release()
    run = sites.run()
    inner = run.sums.grid.inner
    assert isinstance(inner, LocalGrid)
    inner.faults = {4: Fault(raises="killed")}
    with pytest.raises(NothingUnmasked, match="gives nothing to this sum"):
        run.summed("mean")
    assert "same question was answered over other clients, with the same noise" in caplog.text
    assert len(sites.charges()) == 2


def test_a_site_s_own_noise_is_enough_alone_and_the_same_over_other_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same question over five and over four differs by what the fifth sent, which has all the noise."""
    number = itertools.count()
    monkeypatch.setattr(ledger.secrets, "token_hex", lambda size: next(number).to_bytes(size).hex())
    sites = Sites(tmp_path, ACCOUNT, where="local")
    every, charged = sites.release(), sites.charges(4)
    assert np.hypot(*charged) == pytest.approx(MU, rel=1e-12)
    layout = sites.run().layout
    mean = layout.read_mean(every[0], 30)

    def over(*clients: int) -> list[Words]:
        run = replace(sites.run(), clients=clients)
        return [run.summed("mean"), run.summed("moments", mean)]

    fewer, alone = over(0, 1, 2, 3), over(4)
    pairs = zip(itertools.chain(*every), itertools.chain(*fewer), itertools.chain(*alone), strict=True)
    assert all(np.array_equal(total - others, own) for total, others, own in pairs) and sites.charges(4) == charged
    sites.nodes = sites.nodes[4:]
    wanted = [*exact(sites, None), *exact(sites, mean)]
    sizes = [*layout.noise("mean", honest=1), *layout.noise("moments", honest=1)]
    found = zip(itertools.chain(*alone), wanted, sizes, strict=True)
    noise = torch.cat([(numbers_of(words) - without) / size for words, without, size in found])
    assert float(noise.std()) == pytest.approx(1, rel=0.08)


def test_less_noise_than_the_run_declares_is_charged_in_full_or_refused(tmp_path: Path) -> None:
    """The run says epsilon 1, the server asks for the noise of 8: the account goes by what is asked."""
    sites = Sites(tmp_path, where="local")
    sites.release(mu_of(8.0, DELTA))
    assert np.hypot(*sites.charges()) == pytest.approx(mu_of(8.0, DELTA), rel=1e-12)
    sites = Sites(tmp_path / "limited", ACCOUNT, where="local")
    run = sites.run(mu_of(8.0, DELTA))
    with pytest.raises(TooFewClients, match=f"{OVER} 8 at its owner's delta 0.001, and ends at 1"):
        run.summed("mean")
    # Nor does a mean of the server's own choice begin what does not fit.
    with pytest.raises(TooFewClients, match=OVER):
        run.summed("moments", torch.zeros(run.layout.feature_dim, dtype=torch.float64))
    assert sites.charges() == []


def test_a_site_that_is_lost_costs_its_samples_only(tmp_path: Path) -> None:
    """At its words or at the unmasking of the first sum; the second is then over the four that are left."""
    sites = Sites(tmp_path)
    run = sites.run()
    inner = run.sums.grid.inner
    assert isinstance(inner, LocalGrid)
    inner.faults = {4: Fault(raises="killed")}
    run.summed("moments", run.layout.read_mean(run.summed("mean"), 30))
    assert run.over == (0, 1, 2, 3)
    assert len(sites.charges(0)) == 2 and sites.charges(4) == []
    run = sites.run(seed=1)
    run.sums.grid.inner.faults = {3: Fault(raises="killed"), 4: Fault(raises="killed")}
    with pytest.raises(NothingUnmasked, match="3 of 5 clients are left, secure sums need 4 of them"):
        run.summed("mean")


def test_who_is_lost_before_words_are_asked_makes_it_another_question(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    mean, _ = sites.release()
    run = sites.run()
    run.parties = replace(run.parties, active=run.parties.active[:-1])
    difference = float(numbers_of(run.summed("mean")[0]).sub(numbers_of(mean[0])).std())
    # Two draws of four and five shares, less one site's six images at most.
    assert difference > run.layout.noise("mean", 4)[0] * 2 and len(sites.charges()) == 3


def test_all_versions_of_the_data_are_one_account(tmp_path: Path) -> None:
    sites = Sites(tmp_path, ACCOUNT)
    first = sites.release()
    sites.more_images(*range(5))
    sites.restart()
    with pytest.raises(NothingUnmasked, match=f"{OVER} 1.* at its owner's delta 0.001, and ends at 1 .dp-max-epsilon"):
        sites.release()
    assert len(sites.charges()) == 2 and first


def test_a_new_sample_that_no_cell_has_yet_gets_new_noise(tmp_path: Path) -> None:
    """Cells do not see two images more. Other sites' noise, if it stayed the same, would fall out of the difference."""
    sites = Sites(tmp_path)
    (before, *_), _ = sites.release()
    sites.more_images(0)
    sites.restart()
    (after, *_), _ = sites.release()
    assert [len(sites.charges(place)) for place in range(5)] == [4] * 5
    # Two draws of five shares, of which one site's would be 1.4.
    assert float(numbers_of(after).sub(numbers_of(before)).std()) > sites.run().layout.noise("mean", 4)[0] * 2


def test_data_that_change_in_a_run_take_no_more_part_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others' noise is that of the data before."""
    sites = Sites(tmp_path)
    run = sites.run()
    sites.more_images(0)
    sites.restart()
    run.summed("mean")
    assert run.over == (1, 2, 3, 4) and "this node's data changed since this run of masks began" in caplog.text


def test_the_owners_delta_judges_not_the_servers(tmp_path: Path) -> None:
    """Epsilon 1 at a delta of 0.9 is hardly any noise."""
    sites = Sites(tmp_path, ACCOUNT)
    mu = mu_of(1.0, 0.9)
    with pytest.raises(NothingUnmasked, match=f"{OVER} {epsilon_of(mu, DELTA):.3g} at its owner's delta 0.001"):
        sites.release(mu)
    assert sites.charges() == []


@pytest.mark.parametrize("share", [0.5, 1.0, 1.001])
def test_an_account_holds_as_much_as_its_owner_says(tmp_path: Path, share: float) -> None:
    """Two releases of 70 % make one of 0.99, and a third no longer fits."""
    sites = Sites(tmp_path, ACCOUNT)
    if share > 1:
        with pytest.raises(NothingUnmasked, match=OVER):
            sites.release(MU * share)
        return
    sites.release(MU * share)
    if share == 0.5:
        for seed in (1, 2, 3):
            sites.release(MU * share, seed=seed)
    with pytest.raises(NothingUnmasked, match=OVER):
        sites.release(MU * 0.02, seed=9)


def test_what_does_not_fit_whole_is_not_begun(tmp_path: Path) -> None:
    """The mean alone would fit, and be charged for nothing."""
    sites = Sites(tmp_path, ACCOUNT)
    run = sites.run(MU * 1.5)
    assert run.layout.charge("mean") < MU
    with pytest.raises(NothingUnmasked, match=OVER):
        run.summed("mean")
    assert sites.charges() == []


def test_a_path_spelt_otherwise_is_the_same_account(tmp_path: Path) -> None:
    sites = Sites(tmp_path, ACCOUNT)
    sites.release()
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    for node in sites.nodes:
        node["data-path"] = str(tmp_path / "link" / "." / Path(str(node["data-path"])).name)
        node["state-dir"] = str(node["state-dir"]) + "-new"
    sites.restart()
    with pytest.raises(NothingUnmasked, match=OVER):
        sites.release(seed=1)


def test_fewer_shares_of_noise_than_were_counted_on_are_not_unmasked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the server says of who is honest: of five, four must be left, by each site's own count."""
    run = Sites(tmp_path).run()
    sums, agreed = run.sums, run.parties
    content, query = sums_content(agreed.plan, 0, agreed.active), query_of(run.question, "mean", agreed.active)
    total = sums.added(content, SECURE_NOISY, dict(enumerate(agreed.clients)), run.layout.shapes("mean"), query)
    total.survivors = total.survivors[:3]
    with pytest.raises(NothingUnmasked, match="gives nothing to this sum"):
        sums.unmasked(agreed, total, agreed.active[:3])
    assert "of 5 parties at least 4 must be left, got 3" in caplog.text


def test_a_second_mean_in_one_run_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Sites(tmp_path).run()
    run.summed("mean")
    with pytest.raises(NothingUnmasked, match="gives nothing to this sum"):
        run.summed("mean")
    assert "mean of this run of masks are known" in caplog.text


def test_a_share_of_the_noise_is_given_among_peers_only(tmp_path: Path) -> None:
    """A server that is all the other parties would take their shares off: epsilon 1 would be 2.1 with five."""
    with pytest.raises(NothingUnmasked, match="a share of the noise is enough among secure-peers only"):
        Sites(tmp_path, known=False).run()
    Sites(tmp_path / "alone", ACCOUNT, where="local").release()


@pytest.mark.parametrize("kind", [*client_app.ANSWERS, "query.clients"])
def test_a_node_with_an_account_answers_nothing_outside_of_it(tmp_path: Path, kind: str) -> None:
    """Whatever is asked, by name and before anything is read; nor is a run without noise begun."""
    sites = Sites(tmp_path, ACCOUNT, names="a")
    refusal = "answers within its account only (dp-max-epsilon): a run with dp-epsilon"

    def ask(config: AppConfig) -> Message:
        grid = LocalGrid(client_app.app, sites.nodes, config.to_run_config())
        (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=FIRST_NODE_ID, message_type=kind)])
        return reply

    clear = AppConfig.of(backbone="random:tiny", input_size=16)
    if kind == "query.clients":
        site_folder(tmp_path / "a", ("rare",), seed=1, images=9)
        sites.restart()
        for config in (sites.settings, clear):
            assert list(ask(config).content["node"]["class-names"]) == list(CLASSES)  # type: ignore[arg-type, index]
        return
    assert refusal in ask(clear).error.reason
    assert (refusal in ask(sites.settings).error.reason) == (kind not in client_app.ACCOUNTED)


def test_a_run_with_noise_takes_no_class_names_from_data(tmp_path: Path) -> None:
    sites = Sites(tmp_path, names="a")
    grid = LocalGrid(client_app.app, sites.nodes, sites.settings.to_run_config())
    (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=FIRST_NODE_ID, message_type="query.clients")])
    assert "takes class names from the node's owner (dp-classes)" in reply.error.reason


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"dp-max-epsilon": 1.0, "dp-max-delta": 1e-5}, "goes with data-path, dp-max-delta and dp-classes"),
        ({"dp-max-epsilon": 1.0, "dp-classes": "a,b"}, "goes with data-path, dp-max-delta and dp-classes"),
        ({"dp-max-delta": 1e-5}, "dp-max-delta goes with dp-max-epsilon"),
        ({"dp-classes": "a,,b"}, "must be different names"),
        ({"dp-classes": "a,a"}, "must be different names"),
        ({"dp-max-epsilon": 0.0}, "dp-max-epsilon"),
        ({"dp-max-delta": 0.9}, "dp-max-delta"),
    ],
)
def test_an_account_is_whole(rules: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        NodeConfig.from_node_config({"data-path": "/x", **rules})
    if "dp-max-epsilon" in rules and "dp-classes" in rules:
        with pytest.raises(ConfigError, match="goes with data-path"):
            NodeConfig.from_node_config({"partition-id": 0, "num-partitions": 1, **rules, "dp-max-delta": 1e-5})


def test_a_question_is_read_strictly(tmp_path: Path) -> None:
    run = Sites(tmp_path).run()
    agreed, mean = run.parties, torch.zeros(run.layout.feature_dim, dtype=torch.float64)
    request, noisy = read_question(run.question)
    assert question_text(request, noisy) == run.question and noisy == NoisyRequest(MU)
    values = json.loads(run.question)
    wrong: list[Any] = [{**values, "noisy": {"mu": mu}} for mu in (0.0, float("nan"), 1e4, "1")]
    wrong += [{**values, "sum": {}}, {"noisy": values["noisy"]}, [], 1]
    several = StatisticsRequest(3, StatisticsSpec(True, 2), class_names=CLASSES)
    texts = [question_text(several, noisy), question_text(replace(request, holdout=0.5), noisy)]
    texts.append(question_text(replace(request, spec=StatisticsSpec(fraction_bits=8)), noisy))
    for text in [*map(json.dumps, wrong), *texts, "x", "[" * 100_000]:
        with pytest.raises(RejectedRequest, match="not a question for sums"):
            read_question(text)
    mean[0] = torch.nan
    with pytest.raises(RejectedRequest, match="mean"):
        read_noisy_request(instruction(sums_content(agreed.plan, 1, agreed.active, mean), SECURE_NOISY))
