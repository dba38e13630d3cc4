"""Noise at the sites: what a server gains by asking again, of others, otherwise or too much."""

from __future__ import annotations

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
from flwr.app import ConfigRecord, Message, RecordDict

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
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.statistics.noisy_words import NoisyKind, NoisyLayout
from fedstats_app.statistics.secure_words import Words, numbers_of
from fedstats_app.strategies.noisy_sums import ClearRun, NoisyRun
from fedstats_app.strategies.secure_sums import NothingUnmasked
from fedstats_app.testing import FIRST_NODE_ID, Fault, LocalGrid, instruction
from fedstats_app.wire import StatisticsRequest
from fedstats_app.wire.reading import RejectedRequest
from fedstats_app.wire.secure import SECURE_NOISY, NoisyRequest, read_noisy_request, sums_content
from tests.support.simulation import nodes_of, site_folder

CLASSES, DELTA = ("ant", "bee", "cat"), 1e-3
MU = mu_of(1.0, DELTA)
ACCOUNT: dict[str, object] = {"dp-max-epsilon": 1.0, "dp-max-delta": DELTA, "dp-classes": ",".join(CLASSES)}
OPEN: dict[str, object] = {"min-class-count": 0, "min-gram-samples": 0}
OVER = "account of its data would come to epsilon"


@dataclass
class Begun:
    """Sums that have begun, with the state after the last one."""

    sums: Any
    parties: Any
    over: tuple[int, ...] = ()

    def summed(self, kind: NoisyKind, mean: torch.Tensor | None = None) -> Words:
        found = self.sums.summed(self.parties, kind, None, {} if mean is None else {"mean": mean})
        self.parties, self.over = found.parties, found.over
        words: Words = found.words
        return words


@dataclass
class Sites:
    """Five sites with data of their own, and a server that asks them what it likes."""

    root: Path
    rules: dict[str, object] = field(default_factory=dict)
    names: str = "abcde"
    where: Place = "sites"

    def __post_init__(self) -> None:
        nodes = nodes_of(self.root, self.names, CLASSES, images=2)
        own = [{"state-dir": str(self.root / "state" / name)} for name in self.names]
        self.nodes = [{**node, **state, **self.rules} for node, state in zip(nodes, own, strict=True)]
        masks = "on" if self.where == "sites" else "off"
        self.settings = AppConfig.of(
            backbone="random:tiny",
            input_size=16,
            secure_sums=masks,
            dp_epsilon=1.0,
            dp_samples=30,
            dp_where=self.where,
        )
        self.backbone = loaded_backbone(self.settings.backbone_for(own_data=True), self.root)

    def run(
        self,
        mu: float = MU,
        *,
        seed: int = 0,
        faults: dict[int, Fault] | None = None,
        moments: bool = True,
        clip: float = 0.0,
    ) -> Begun:
        """A run of masks that has begun; its nodes are processes of their own."""
        grid = LocalGrid(client_app.app, self.nodes, self.settings.to_run_config(), faults=faults or {})
        hosts = {number: FIRST_NODE_ID + number for number in range(len(self.nodes))}
        spec = StatisticsSpec(moments)
        request = StatisticsRequest(
            3, spec, "float64", seed=seed, backbone_fingerprint=self.backbone.fingerprint, class_names=CLASSES
        )
        layout = NoisyLayout(3, self.backbone.feature_dim, moments=True, mu=mu, clip=clip)
        run: NoisyRun | ClearRun = NoisyRun(ClientGrid(grid, hosts), request, layout)
        if self.where != "sites":
            run = ClearRun(run.grid, request, replace(layout, salted=True), 1, self.where == "server")
        return Begun(run, run.begin(range(len(self.nodes))))

    def release(self, mu: float = MU, **options: Any) -> tuple[Words, Words]:
        """Both sums, as they come out."""
        run = self.run(mu, **options)
        mean = run.summed("mean")
        return mean, run.summed("moments", run.sums.layout.read_mean(mean, 30))

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
        blocks = _blocks(site, site.reader(""), request)
        own = layout.sums("mean" if mean is None else "moments", blocks, mean)
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


def test_the_same_question_gets_the_same_noise_and_is_charged_once(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    first = sites.release()
    charged = sites.charges()
    assert np.hypot(*charged) == pytest.approx(MU, rel=1e-12)
    sites.restart()
    assert same(sites.release(), first)
    assert sites.charges() == charged
    assert not same(sites.release(seed=1), first)
    assert len(sites.charges()) == 4


def test_the_same_noise_is_not_unmasked_over_other_survivors(tmp_path: Path) -> None:
    """The difference of both sums would be one site's, with one share of noise."""
    sites = Sites(tmp_path)
    sites.release()
    run = sites.run()
    inner = run.sums.grid.inner
    assert isinstance(inner, LocalGrid)
    inner.faults = {4: Fault(raises="killed")}
    with pytest.raises(NothingUnmasked, match="same question was answered over other clients, with the same noise"):
        run.summed("mean")
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
    layout = sites.run().sums.layout
    mean = layout.read_mean(every[0], 30)

    def over(*clients: int) -> list[Words]:
        sums = sites.run().sums
        run = Begun(sums, sums.begin(clients))
        return [run.summed("mean"), run.summed("moments", mean)]

    fewer, alone = over(0, 1, 2, 3), over(4)
    pairs = zip(itertools.chain(*every), itertools.chain(*fewer), itertools.chain(*alone), strict=True)
    assert all(np.array_equal(total - others, own) for total, others, own in pairs)
    assert sites.charges(4) == charged
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
    run.sums.layout = replace(run.sums.layout, mu=1000.0, clip=1000.0)
    with pytest.raises(TooFewClients, match=OVER):
        run.summed("moments", torch.zeros(run.sums.layout.feature_dim, dtype=torch.float64))
    assert sites.charges() == []


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (ACCOUNT, r"whose noise is added before anything leaves \(dp-where = sites or local\)"),
        ({"secure-min-clients": 3}, "secure sums only"),
        ({}, "only if its owner sets min-class-count and min-gram-samples to 0"),
        ({"min-class-count": 0}, "min-class-count and min-gram-samples"),
        ({"min-class-count": 2, "min-gram-samples": 0}, "min-class-count and min-gram-samples"),
        (OPEN | {"max-statistics-questions": 0}, "at most 0 different statistics questions"),
    ],
)
def test_a_server_that_wants_to_add_the_noise_itself_is_refused_by_name(
    tmp_path: Path, rules: dict[str, object], reason: str
) -> None:
    """Whatever the run's configuration says of dp-where: what counts is that the answer would have no noise."""
    sites = Sites(tmp_path, rules, where="server")
    for settings in (sites.settings, Sites(tmp_path / "b", rules, where="local").settings):
        sites.settings = settings
        with pytest.raises(TooFewClients, match=reason):
            sites.run().summed("mean")
    assert not list((tmp_path / "state").glob("sent-*"))


def test_a_server_s_own_noise_is_drawn_once_over_exact_sums(tmp_path: Path) -> None:
    sites = Sites(tmp_path, OPEN, where="server")
    mean, moments = sites.release()
    layout = sites.run().sums.layout
    wanted = [*exact(sites, None), *exact(sites, layout.read_mean(mean, 30))]
    sizes = [*layout.noise("mean", honest=1), *layout.noise("moments", honest=1)]
    found = zip([*mean, *moments], wanted, sizes, strict=True)
    noise = torch.cat([(numbers_of(words) - without) / size for words, without, size in found])
    assert float(noise.std()) == pytest.approx(1, rel=0.2)
    assert sites.charges() == []


def test_a_site_that_is_lost_costs_its_samples_only(tmp_path: Path) -> None:
    """At its words or at the unmasking of the first sum; the second is then over the four that are left."""
    sites = Sites(tmp_path)
    run = sites.run()
    inner = run.sums.grid.inner
    assert isinstance(inner, LocalGrid)
    inner.faults = {4: Fault(raises="killed")}
    mean = run.sums.layout.read_mean(run.summed("mean"), 30)
    run.summed("moments", mean)
    assert run.over == (0, 1, 2, 3)
    assert len(sites.charges(0)) == 2 and sites.charges(4) == []
    inner.faults = {3: Fault(raises="killed"), 4: Fault(raises="killed")}
    with pytest.raises(NothingUnmasked, match="3 of 5 clients are left, secure sums need 4 of them"):
        run.summed("mean")


def test_who_is_lost_before_words_are_asked_makes_it_another_question(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    mean, _ = sites.release()
    run = sites.run()
    run.parties = replace(run.parties, active=run.parties.active[:-1])
    other = run.summed("mean")
    difference = float(numbers_of(other[0]).sub(numbers_of(mean[0])).std())
    # Two draws of four and five shares, less one site's six images at most.
    assert difference > run.sums.layout.noise("mean", 4)[0] * 2
    assert len(sites.charges()) == 3


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
    difference = float(numbers_of(after).sub(numbers_of(before)).std())
    assert difference > sites.run().sums.layout.noise("mean", 4)[0] * 2


def test_data_that_change_in_a_run_take_no_more_part_in_it(tmp_path: Path) -> None:
    """The others' noise is that of the data before."""
    sites = Sites(tmp_path)
    run = sites.run()
    sites.more_images(0)
    sites.restart()
    run.summed("mean")
    assert run.over == (1, 2, 3, 4)
    assert "this node's data changed since this run of masks began" in run.sums.failures[0]


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
    assert run.sums.layout.charge("mean") < MU
    with pytest.raises(NothingUnmasked, match=OVER):
        run.summed("mean")
    assert sites.charges() == []


def length(run: Begun) -> float:
    """Of the sum of the mean, in samples."""
    return float(numbers_of(run.summed("mean")[0]).norm()) / 2**11


def test_who_holds_too_much_is_clipped_at_the_node_whatever_the_server_names(tmp_path: Path) -> None:
    """Six images a site, much alike. A longer clip comes with as much more noise, and a shorter one is none."""
    sites = Sites(tmp_path)
    assert length(sites.run(1000.0)) > 20
    assert 9 < length(sites.run(1000.0, clip=2.0)) < 10.1
    dim = sites.backbone.feature_dim
    alone = NoisyLayout(3, dim, moments=True, mu=1.0, clip=2000.0)
    expected = alone.noise("mean", 4)[0] / 2**11 * (5 * dim) ** 0.5
    assert length(sites.run(1.0, clip=2000.0)) == pytest.approx(expected, rel=0.5)
    run = sites.run(clip=2.0)
    object.__setattr__(run.sums.layout, "clip", 0.9)
    with pytest.raises(NothingUnmasked, match="clip must be 0 or at least"):
        length(run)


def test_another_clip_in_one_run_is_refused(tmp_path: Path) -> None:
    run = Sites(tmp_path).run(clip=2.0)
    mean = run.sums.layout.read_mean(run.summed("mean"), 30)
    run.sums.layout = replace(run.sums.layout, clip=2000.0)
    with pytest.raises(NothingUnmasked, match="statistics asked for are others than in the round before"):
        run.summed("moments", mean)


def test_noise_for_clients_is_charged_as_for_samples_and_another_clip_is_another_question(tmp_path: Path) -> None:
    sites = Sites(tmp_path, ACCOUNT)
    sites.release(MU * 0.8, clip=2.0)
    assert np.hypot(*sites.charges()) == pytest.approx(MU * 0.8, rel=1e-12)
    sites.release(MU * 0.8, clip=2.0)
    with pytest.raises(NothingUnmasked, match=OVER):
        sites.release(MU * 0.8, clip=2.5)


@pytest.mark.parametrize("where", ["sites", "local"])
def test_an_owner_can_want_clients_hidden(tmp_path: Path, where: Place) -> None:
    """A clip of 0 is refused by name, whatever the run says, and nothing is charged; any other hides the client."""
    sites = Sites(tmp_path, ACCOUNT | {"dp-unit": "client"}, where=where)
    run = sites.run()
    with pytest.raises(TooFewClients, match="wants clients hidden, not samples alone: a run with dp-unit = client"):
        run.summed("mean")
    assert not list((tmp_path / "state").rglob("ledger-*")) or sites.charges() == []
    sites.release(clip=2.0)
    assert np.hypot(*sites.charges()) == pytest.approx(MU, rel=1e-12)


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


def test_fewer_shares_of_noise_than_were_counted_on_are_not_unmasked(tmp_path: Path) -> None:
    """Whatever the server says of who is honest: of five, four must be left, by each site's own count."""
    sites = Sites(tmp_path)
    run = sites.run()
    sums, agreed = run.sums, run.parties
    total = sums.add_up(agreed, "mean", *sums.question(agreed, "mean", {}), torch.ones(3, dtype=torch.bool))
    total.survivors = total.survivors[:3]
    with pytest.raises(NothingUnmasked, match="of 5 parties at least 4 must be left, got 3"):
        sums.unmasked(agreed, total, agreed.active[:3])


def test_a_second_mean_or_another_question_in_one_run_is_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    run = sites.run()
    run.summed("mean")
    with pytest.raises(NothingUnmasked, match="mean of this run of masks are known"):
        run.summed("mean")
    run = sites.run(seed=5)
    mean = run.sums.layout.read_mean(run.summed("mean"), 30)
    run.sums.layout = NoisyLayout(3, run.sums.layout.feature_dim, moments=True, mu=MU * 2)
    with pytest.raises(NothingUnmasked, match="statistics asked for are others than in the round before"):
        run.summed("moments", mean)


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
    noisy = ask(sites.settings)
    assert (refusal in noisy.error.reason) == (kind not in client_app.ACCOUNTED)


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
        ({"dp-max-delta": 1e-5}, "dp-max-delta and dp-unit go with dp-max-epsilon"),
        ({"dp-unit": "client"}, "dp-max-delta and dp-unit go with dp-max-epsilon"),
        ({"dp-unit": "site"}, "dp-unit"),
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
    agreed = run.parties
    mean = torch.zeros(run.sums.layout.feature_dim, dtype=torch.float64)

    def content(**changes: Any) -> RecordDict:
        asked = NoisyRequest("moments", 1.0)
        made = sums_content(agreed.plan, 1, agreed.active, run.sums.request, asked, {"mean": mean})
        for name, value in changes.items():
            made[name] = value
        return made

    def noisy(kind: str = "moments", mu: float = 1.0, clip: float = 0.0) -> dict[str, ConfigRecord]:
        return {"noisy": ConfigRecord({"kind": kind, "mu": mu, "clip": clip})}

    assert read_noisy_request(instruction(content(**noisy()), SECURE_NOISY))[4] == NoisyRequest("moments", 1.0)
    wrong = [
        noisy(mu=0.0),
        noisy(mu=float("nan")),
        noisy(mu=1e4),
        noisy(clip=-1.0),
        noisy(clip=float("inf")),
        noisy("presence"),
        noisy("mean"),  # which needs no mean
        {"noisy": ConfigRecord({"kind": "moments", "mu": 1.0})},
        {"request": StatisticsRequest(3, StatisticsSpec(True, 2), class_names=CLASSES).to_content()["request"]},
        {"request": StatisticsRequest(3, StatisticsSpec(True), holdout=0.5).to_content()["request"]},
    ]
    for changes in wrong:
        with pytest.raises(RejectedRequest, match="not a request for masked sums with noise"):
            read_noisy_request(instruction(content(**changes), SECURE_NOISY))
    mean[0] = torch.nan
    with pytest.raises(RejectedRequest, match="mean"):
        read_noisy_request(instruction(content(), SECURE_NOISY))
