"""Runs with noise through the whole app: what they say before and after, and what they refuse by name."""

import json
import re
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployment import audit
from fedstats_app.base.files import read_json_file, to_json
from fedstats_app.base.option import ConfigError
from fedstats_app.cli import main
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.report.page import report
from fedstats_app.report.run_record import RunRecord
from fedstats_app.secure.account import PLACES, Place, Promise, epsilon_of, mu_of, signal_to_noise
from fedstats_app.server.noise import KEPT, RATIOS, noise_in_words
from tests.support.commands import REPOSITORY
from tests.support.simulation import clients, nodes_of, read_json, simulate, with_keys

CLASSES = ("ant", "bee", "cat")
ACCOUNT: dict[str, Any] = {"dp_max_epsilon": 60.0, "dp_max_delta": 1e-3, "dp_classes": ",".join(CLASSES)}
NOISY: dict[str, Any] = {"secure_sums": "on", "dp_epsilon": 60.0, "dp_delta": 1e-3, "dp_samples": 90, "min_clients": 3}


def sites(root: Path) -> list[dict[str, object]]:
    """Five sites with a state of their own, and images to test on."""
    nodes_of(root, "t", CLASSES, images=5)
    nodes = nodes_of(root, "abcde", CLASSES, images=6, **ACCOUNT)
    return [{**node, "state-dir": str(root / "state" / name)} for name, node in zip("abcde", nodes, strict=True)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of five sites, and the sites' own folders."""
    root = tmp_path_factory.mktemp("noisy")
    nodes = sites(root)
    with_keys(root, nodes)
    settings = {**NOISY, "test_dataset": f"folder:{root / 't'}"}
    simulate(root, node_configs=nodes, method="all", **settings).rename(root / "run")
    return root


def test_a_run_with_noise_says_so_everywhere(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = read_json(made / "run", "results.json")
    assert results["differential_privacy"] == {
        "epsilon": 60.0,
        "delta": 1e-3,
        "mu": mu_of(60.0, 1e-3),
        "num_samples": 90,
        "unit": "sample",
        "noise": "shares of the sites, in secure sums",
    }
    line = "epsilon 60, delta 0.001, for one sample more or less of 90 (declared); noise: shares of the sites"
    assert line in report(RunRecord.read(made / "run")) and set(results["methods"]) == {"fedncm", "fed3r", "fedcgs"}
    # Nothing of single sites, and no sums that others could be added to.
    assert not (made / "run" / "statistics.safetensors").exists()
    assert {(one["outcome"], one["num_examples"]) for one in clients(made / "run")} == {("merged", 0)}


def test_where_the_noise_is_added_is_said_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = NOISY | {"secure_sums": "off", "dp_where": "local", "min_clients": 5, "method": "all"}
    folder = simulate(tmp_path, node_configs=sites(tmp_path), test_dataset=f"folder:{tmp_path / 't'}", **settings)
    told, noise = capsys.readouterr().out, "added by each site, all of it"
    line = f"epsilon 60, delta 0.001, for one sample more or less of 90 (declared); noise: {noise}"
    assert f"noise ({noise}) for epsilon 60" in told and f"differential privacy: {line}" in told
    assert line in report(RunRecord.read(folder))
    results = read_json(folder, "results.json")
    assert results["differential_privacy"]["noise"] == noise
    assert all(one["accuracy"] > 0.9 for one in results["methods"].values()) and len(results["methods"]) == 3
    assert {(one["outcome"], one["num_examples"]) for one in clients(folder)} == {("merged", 0)}
    words = [word for one in "abcde" for word in ("--site", str(tmp_path / "state" / one))]
    assert audit.main([str(folder), *words, "--json"]) == 0
    found = [(one["what"], one["state"], one["found"]) for one in json.loads(capsys.readouterr().out)["findings"]]
    charged = ["ok", "60 in this run at delta 0.001, 60 in all"]
    assert [rest for what, *rest in found if what.startswith("epsilon of")] == [charged] * 5
    assert [state for what, state, _ in found if what.startswith("site ")] == ["ok"] * 5


def test_what_is_outside_the_account_is_refused_by_name(made: Path) -> None:
    nodes = [{"state-dir": str(made / "state" / name), **rules} for name, rules in _rules(made)]
    refusal = r"answers within its account only \(dp-max-epsilon\): a run with dp-epsilon"
    for options in ({}, {"secure_sums": "on"}):
        with pytest.raises(TooFewClients, match=refusal):
            simulate(made, node_configs=nodes, method="fedncm", **options)


def _rules(made: Path) -> list[tuple[str, dict[str, object]]]:
    rules = {name.replace("_", "-"): value for name, value in ACCOUNT.items()}
    return [(name, {"data-path": str(made / name), **rules}) for name in "abcde"]


def audited(made: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, tuple[str, str]]]:
    words = [word for name in "abcde" for word in ("--site", str(made / "state" / name))]
    code = audit.main([str(made / "run"), *words, "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return code, {one["what"].replace(str(made), ""): (one["state"], one["found"]) for one in findings}


def test_an_audit_reads_epsilon_at_the_sites(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = audited(made, capsys)
    assert code == 0
    said = f"60 at delta 0.001 for one sample, N 90, mu {mu_of(60.0, 1e-3):.4g}; shares of the sites, in secure sums"
    assert found["epsilon"] == ("ok", said)
    of_sites = [value for name, value in found.items() if name.startswith("epsilon of")]
    assert of_sites == [("ok", "60 in this run at delta 0.001, 60 in all")] * 5
    assert found["sites' own records of the sum"][0] == "ok"

    # A run that says less than it asked for: its own numbers are at odds, or those of the sites are.
    shutil.copytree(made, tmp_path / "made")
    for changes, wrong in (({"mu": 1.0}, "epsilon of"), ({"epsilon": 1.0}, "epsilon")):
        results = read_json_file(made / "run" / "results.json")
        results["differential_privacy"] |= changes
        (tmp_path / "made" / "run" / "results.json").write_text(to_json(results))
        code, found = audited(tmp_path / "made", capsys)
        assert code == 1
        assert {name for name, (state, _) in found.items() if state == "WRONG"} == {
            name for name in found if name == wrong or (wrong.endswith("of") and name.startswith(wrong))
        }


def test_an_owner_sees_the_account_and_no_reset_forgets_it(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--reset"]):
        assert main(["node", "ledger", *words, "--state-dir", str(made / "state" / "a")]) == 0
        mu = mu_of(60.0, 1e-3)
        line = f"2 sums with noise, never reset: epsilon {epsilon_of(mu, 1e-5):.3g} at delta 1e-05"
        assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "fedcgs@covariance=total"}, "the noise says how it is solved, so fedcgs has no options with it"),
        ({"method": "fedcof"}, "dp-epsilon: fedcof is not served with noise: take fedncm, fed3r or fedcgs"),
        ({"secure_sums": "off"}, "dp-epsilon: needs secure-sums = on, got off"),
        ({"dp_where": "local"}, "dp-epsilon: needs secure-sums = off, got on, with dp-where = local"),
        ({"dp_where": "local", "secure_sums": "off", "method": "fedcof"}, "dp-epsilon: fedcof is not served"),
        ({"dp_where": "local", "secure_sums": "off", "fine_tune": "probe"}, "dp-epsilon: fine-tune must be none"),
        (
            {"dp_where": "local", "secure_sums": "off", "save_statistics": "clients"},
            "dp-epsilon: save-statistics must be sum or none",
        ),
        ({"dp_where": "nowhere"}, "dp-where"),
        ({"dp_epsilon": 0.0, "dp_where": "local"}, "dp-where: needs a dp-epsilon"),
        ({"min_class_count": 5}, "dp-epsilon: needs min-class-count = 0, got 5"),
        ({"partitioner": "iid", "partition.flips": "both"}, "dp-epsilon: partition.flips must be none"),
        ({"fine_tune": "probe"}, "secure-sums: fine-tune must be none"),
        ({"dp_epsilon": 0.0}, "dp-delta: needs a dp-epsilon"),
        ({"dp_delta": 0.9}, "dp-delta"),
        ({"dp_epsilon": 1e4}, "dp-epsilon"),
    ],
)
def test_what_noise_cannot_serve_is_refused_by_name(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        simulate(tmp_path, **{**NOISY, "method": "fedncm", **settings})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dp_samples": 0}, "dp-samples: SuperNodes with data"),
        ({"dp_samples": 5000}, "must be below 1 / 5,000 samples"),
        ({"dp_samples": 50, "dp_delta": 0.01}, "must be below 1 / 50 samples and 0.01, got 0.01"),
    ],
)
def test_own_data_need_a_number_that_delta_fits(made: Path, settings: dict[str, Any], reason: str) -> None:
    nodes = [rules for _, rules in _rules(made)]
    with pytest.raises(ValueError, match=reason):
        simulate(made, node_configs=nodes, **{**NOISY, **settings}, method="fedncm")


def test_what_noise_leaves_is_no_more_than_was_measured() -> None:
    """The shares are at most those of the tables of research/noise.md."""
    measured: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    sizes = [0, 0, 0]
    for line in (REPOSITORY / "research" / "noise.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 7 or cells[1] not in ("FedNCM", "Fed3R", "FedCGS"):
            continue
        if named := re.search(r"([\d,]+), ([\d,]+), ([\d,]+)$", cells[0]):
            sizes = [int(size.replace(",", "")) for size in named.groups()]
        *found, without = (float(cell.split()[0]) for cell in cells[2:])
        for epsilon, accuracy in zip((0.5, 1, 4, 8), found, strict=True):
            ratio = signal_to_noise(*sizes, mu_of(epsilon, sizes[0] ** -1.1))
            measured[cells[1].lower()].append((float(f"{ratio:.2g}"), accuracy / without))
    assert {name: len(found) for name, found in measured.items()} == {"fedncm": 40, "fed3r": 40, "fedcgs": 28}
    for name, found in measured.items():
        for ratio, share in zip(RATIOS, KEPT[name], strict=True):
            # Where nothing was measured so high, what the next lower ratio left.
            reached = max(one for one in RATIOS if one <= min(ratio, max(at for at, _ in found)))
            assert min(kept for at, kept in found if at >= reached) >= share


def test_before_anything_is_sent_a_run_says_what_noise_costs_and_what_would_cost_less() -> None:
    promise = Promise(1.0, 1e-5, 8000)
    (line, more) = noise_in_words(promise, ("fedncm", "fed3r"), 10, 1280, 100)
    assert "epsilon 1 at delta 1e-05 for one sample of 8,000: signal to noise 2.3;" in line
    assert line.endswith("it leaves at least, where it was measured: FedNCM 93 %, Fed3R 77 %")
    assert more == "dp-epsilon 4 would give a signal to noise of 8"
    (line, more) = noise_in_words(Promise(0.01, 1e-5, 300), ("fedncm",), 10, 1280, 5)
    assert "little: it was never measured so low" in line
    assert more.startswith("much is lost below a signal to noise of 2: dp-epsilon ")
    # Of 100 sites' noise 60 would be enough, and of 100 whole ones there is 100 times the square.
    places: dict[Place, str] = {"sites": "2.3", "local": "0.3"}
    for where, ratio in places.items():
        (line, *_) = noise_in_words(replace(promise, where=where), ("fedncm",), 10, 1280, 100)
        assert f"noise ({PLACES[where]}) for epsilon 1" in line and f"signal to noise {ratio};" in line


def test_a_run_without_noise_says_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = simulate(tmp_path, method="fedncm", test_dataset="builtin")
    assert "differential privacy: none\n" in capsys.readouterr().out
    assert read_json(folder, "results.json")["differential_privacy"] == "none" and audit.main([str(folder)]) == 0
    assert "epsilon: none" in capsys.readouterr().out
