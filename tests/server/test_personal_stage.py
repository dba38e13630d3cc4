"""Personal models in whole runs, without Ray: every approach on the papers' split, and what is left of it."""

from pathlib import Path

import pytest

from fedstats_app.report.personal_result import PersonalResult
from fedstats_app.server import personalisation
from fedstats_app.server.personalisation import PersonalSession
from tests.support.simulation import Killed, killed, read_json, simulate

SHORT = {"epochs": 1}
SETTINGS = {
    "partitioner": "fedpac",
    "partition.samples-per-class": 60,
    "num_clients": 6,
    "method": "fedncm,fed3r,fedcgs",
    "personalise": "all",
    "personal": SHORT,
}


def test_every_approach_is_scored_on_the_same_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = read_json(simulate(tmp_path, **SETTINGS), "results.json")
    personal = results["personal"]
    assert set(personal) == {
        *(f"global-{method}" for method in ("fedncm", "fed3r", "fedcgs")),
        *("local-only", "one-shot"),
        *("closed-form-fed3r", "closed-form-fedcgs"),
    }
    # 600 images over six clients of one size, a fifth of each held out.
    held_out = round(0.2 * (600 // 6))
    assert {sum(entry["num_test"].values()) for entry in personal.values()} == {6 * held_out}
    # Statistics are without the samples that clients score on.
    assert results["methods"]["fed3r"]["num_examples"] == 6 * (600 // 6 - held_out)
    assert all(len(entry["accuracies"]) == 6 and not entry["failures"] for entry in personal.values())
    # What the clients' own samples know of their own classes: more than the federation's mean classes.
    assert personal["closed-form-fed3r"]["accuracy_mean"] > personal["global-fedncm"]["accuracy_mean"]
    assert "FedCGS one-shot" in capsys.readouterr().out


@pytest.mark.parametrize("kept", ["sum", "none"])
def test_an_interrupted_comparison_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """Also beside training, which must then respect what clients keep for personal models."""
    settings = {
        **SETTINGS,
        "num_clients": 4,
        "personalise": "closed-form,local-only,one-shot,global",
        "personal": SHORT,
        "fine_tune": "probe",
        "num_server_rounds": 1,
        "save_statistics": kept,
    }
    run_approach, asked = personalisation.run_approach, list[str]()

    def run_or_die(session: PersonalSession, approach: str) -> dict[str, PersonalResult]:
        asked.append(approach)
        if asked == ["closed-form", "local-only", "one-shot"]:
            raise Killed
        return run_approach(session, approach)

    monkeypatch.setattr(personalisation, "run_approach", run_or_die)
    cut = killed(tmp_path / "cut", **settings)
    if kept == "none":
        with pytest.raises(ValueError, match="save-statistics was none"):
            simulate(tmp_path / "cut", resume=str(cut), **settings)
        return
    before = read_json(cut, "results.json")["personal"]
    assert set(before) == {"closed-form-fed3r", "closed-form-fedcgs", "local-only"}
    simulate(tmp_path / "cut", resume=str(cut), **settings)
    assert asked == ["closed-form", "local-only", "one-shot", "one-shot", "global"]
    whole = simulate(tmp_path / "whole", **settings)
    resumed, uninterrupted = (read_json(folder, "results.json")["personal"] for folder in (cut, whole))
    assert all(resumed[name] == before[name] for name in before)
    for entry in (*resumed.values(), *uninterrupted.values()):
        entry.pop("seconds")
    assert resumed == uninterrupted and not any(entry["failures"] for entry in resumed.values())
