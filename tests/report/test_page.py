"""The page of a run: what is on it, and what must not be."""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedstats_app.base.files import read_json_file, to_json
from fedstats_app.report.page import report, write_report
from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.wording import warnings
from tests.report.conftest import PRIVATE

VOID = {"meta", "link", "br", "img"}


class Tags(HTMLParser):
    """Refuses tags that do not close in the order in which they open; keeps text and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).replace("\u00a0", " ").split())


def page_of(folder: Path) -> Tags:
    return Tags((folder / "report.html").read_text(encoding="utf-8"))


def test_every_run_has_one_with_all_its_parts(server_run: Path) -> None:
    page = page_of(server_run)
    results = read_json_file(server_run / "results.json")
    for name in ("FedNCM", "Fed3R", "FedCOF", "FedCGS", "FedRoot"):
        assert name in page.words
    for entry in results["methods"].values():
        assert f"{100 * entry['accuracy']:.2f} %" in page.words
        assert "{:.1f} to {:.1f}".format(*(100 * bound for bound in entry["accuracy_interval"])) in page.words
    for heading in ("Classes", "Most confused", "Sites", "Training from the heads", "Time", "What left the sites"):
        assert heading in page.words
    assert "statistics.class-sums" in page.words and "rose taken for tulip" in page.words
    assert list(results["seconds_by_phase"]) == ["preparation", "statistics and solving", "evaluation"]
    assert "fedstats predict" in page.words
    # The first sentence, and bytes: of the recommended head, and of all.
    assert "This is a simulation on one machine." in page.words and "sent for " in page.words
    assert " for all methods and trainings of this run together" in page.words


def test_it_needs_no_other_file_and_is_small(server_run: Path, client_run: Path) -> None:
    for folder in (server_run, client_run):
        path = folder / "report.html"
        assert path.stat().st_size < 3_000_000
        page = page_of(folder)
        links = [value for _, name, value in page.attributes if name in ("src", "href", "action", "srcset", "data")]
        assert links and all(link.startswith(("#", "data:")) for link in links)
        assert not {tag for tag, _, _ in page.attributes} & {"script", "iframe", "object", "form"}
        assert "url(" not in path.read_text(encoding="utf-8")


def test_it_shows_where_nobodys_data_lie(server_run: Path, client_run: Path) -> None:
    for folder in (server_run, client_run):
        assert PRIVATE in (folder / "config.json").read_text(), "else this test looks for nothing"
        assert PRIVATE not in (folder / "report.html").read_text(encoding="utf-8")
    assert "folder:flowers" in page_of(server_run).words


def test_names_cannot_become_markup(client_run: Path) -> None:
    text = (client_run / "report.html").read_text(encoding="utf-8")
    assert "<script>cat" not in text and "&lt;script&gt;cat" in text and "ant &amp; bee" in text
    assert "<memory>" not in text and "&lt;memory&gt;" in text


def test_who_is_left_out_is_named_with_the_reason(client_run: Path) -> None:
    (node,) = read_json_file(client_run / "results.json")["refused_nodes"]
    page = page_of(client_run)
    assert f"machine {node}" in page.words and "out of <memory>" in page.words
    outcomes = [
        {"client": 1, "outcome": "merged"},
        {"client": 2, "outcome": "refused", "reason": "its owner allows no Gram matrix"},
    ]
    page = Tags(report(replace(RunRecord.read(client_run), clients=outcomes)))
    assert "1 site of 2 is not in the result" in page.words
    assert "site 2 refused its owner allows no Gram matrix" in page.words


@pytest.mark.parametrize(
    ("missing", "gone"),
    [
        ("disclosure.jsonl", "What left the sites"),
        ("clients.jsonl", "Sites</h2>"),
        ("config.json", "settings</summary>"),
        ("results.json", "Classes</h2>"),
    ],
)
def test_what_a_folder_lacks_is_left_out(copied: Path, missing: str, gone: str) -> None:
    text = write_report(copied).read_text(encoding="utf-8")
    assert gone in text and write_report(copied).read_text(encoding="utf-8") == text
    (copied / missing).unlink()
    text = write_report(copied).read_text(encoding="utf-8")
    assert gone not in text
    Tags(text)


def words(folder: Path) -> str:
    return Tags(report(RunRecord.read(folder))).words


def test_a_failed_run_says_why(copied: Path) -> None:
    (copied / "results.json").unlink()
    (copied / "status.json").write_text(to_json({"state": "failed", "reason": "TooFewClients: 1 of 2"}))
    page = Tags(report(RunRecord.read(copied)))
    assert "TooFewClients: 1 of 2" in page.words and "This run has no results" in page.words
    assert "fedstats check finds other wrong settings" in page.words and "continue it." in page.words
    (copied / "status.json").write_text(to_json({"state": "running"}))  # and nobody holds its lock
    assert "The run was stopped (its process was killed): the same settings with resume" in words(copied)
    record = read_json_file(copied / "config.json")
    record["run_config"]["secure-sums"] = "on"  # which resume refuses
    (copied / "config.json").write_text(to_json(record))
    assert "killed): with secure sums or noise it cannot be continued" in words(copied)
    assert "resume," not in words(copied)


def test_weak_classes_come_first_and_sites_have_their_owners_names(server_run: Path) -> None:
    run = RunRecord.read(server_run)
    entry = {"accuracy": 0.7, "per_class_accuracy": [0.24, 0.9, 0.49, None], "per_class_examples": [100, 90, 10, 0]}
    entry |= {"most_confused": [[0, 1, 29], [0, 2, 20], [2, 1, 4]]}
    methods = {run.taken: {**run.methods[run.taken], **entry}}
    names = ["glioma", "no_tumor", "pituitary", "other"]
    weak = replace(
        run,
        results={**run.results, "methods": methods, "training": {}},
        config={"class_names": names, "client_names": {"1": "st-mary"}, "data_doubts": ["2 copies"]},
    )
    assert warnings(weak)[:3] == [
        "glioma is found in only 24.00 % of its test images; 29 of 100 are called no_tumor.",
        "pituitary is found in only 49.00 % of its test images; 4 of 10 are called no_tumor.",
        "The data: 2 copies.",
    ]
    assert (weak.site(1), weak.site(2)) == ("site st-mary", "site 2")
