"""A run's page: `report.html` in its folder."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import DictLoader, Environment, StrictUndefined

from fedstats_app import __version__
from fedstats_app.methods import display_name
from fedstats_app.report import view
from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.templates import TEMPLATES
from fedstats_app.report.text_columns import bytes_with_unit, duration, interval_text, percent
from fedstats_app.report.view import SHOWN_AT_ONCE, Share
from fedstats_app.report.wording import facts, summary, warnings
from fedstats_app.storage.files import write_atomically

REPORT_NAME = "report.html"


def write_report(folder: Path, page: Path | None = None) -> Path:
    """Make `report.html` from the other files of a run folder.

    Parameters
    ----------
    folder : Path
        A run folder; the run may have failed, or still go on.
    page : Path, optional
        Where to write it; by default into the folder.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    FileNotFoundError
        If it is no run folder.
    ValueError
        If a file in it is damaged.
    """
    page = folder / REPORT_NAME if page is None else page
    write_atomically(page, report(RunRecord.read(folder)).encode())
    return page


def report(run: RunRecord) -> str:
    """Return a run's page as HTML that needs no other file and no network."""
    shown = {
        "methods": view.method_views(run),
        "classes": view.class_shares(run),
        "confused": view.confused(run),
        "outcomes": view.outcome_rows(run),
        "left_out": view.left_out(run),
        "sites": view.site_shares(run),
        "trainings": view.training_rows(run),
        "personal": view.personal_rows(run),
        "phases": view.phases(run),
        "disclosed": view.disclosed(run),
        "settings": view.settings(run),
    }
    return render(
        "run.html",
        run=run,
        title=_title(run),
        summary=summary(run),
        facts=facts(run),
        tiles=_tiles(run),
        warnings=warnings(run),
        sections=[(place, name) for place, name, content in _NAVIGATION if shown[content]],
        advised=run.title_of(run.advised),
        advice=(run.results.get("advice") or {}).get("text", []),
        figures=view.figures(run),
        pictures=any(one.pictures for one in run.examples),
        environment=view.environment(run),
        **shown,
    )


# Where a section is, how it is called, and what it shows.
_NAVIGATION = (
    ("methods", "Methods", "methods"),
    ("classes", "Classes", "classes"),
    ("confused", "Most confused", "confused"),
    ("sites", "Sites", "outcomes"),
    ("training", "Training", "trainings"),
    ("personal", "Own models", "personal"),
    ("time", "Time", "phases"),
    ("left", "What left the sites", "disclosed"),
    ("use", "How to use it", "methods"),
    ("settings", "Settings", "settings"),
)


def render(template: str, **values: object) -> str:
    """Fill a template; whatever a site, a class or a folder is called cannot become markup."""
    environment = Environment(
        loader=DictLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_unbroken,
    )
    environment.globals.update(
        percent=percent, interval_text=interval_text, place=_place, axis_start=_axis_start, shown=SHOWN_AT_ONCE
    )
    return environment.get_template(template).render(version=__version__, **values)


def _unbroken(value: object) -> object:
    """Keep numbers and their units on one line, in whatever a template prints."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return re.sub(r"(\d) (%|bytes|KB|MB|GB|s|min|h)(?![a-z])", "\\1\u00a0\\2", value)


def _title(run: RunRecord) -> str:
    if not run.methods:
        return f"Run {run.name}"
    return f"{run.kind.capitalize()} classifier of {len(run.class_names):,} classes"


def _tiles(run: RunRecord) -> list[tuple[str, str]]:
    """Return the numbers that one looks for first."""
    if not run.advised:
        return []
    entry = run.methods[run.advised]
    merged, asked = (int(run.results.get(f"num_clients_{what}", 0)) for what in ("merged", "asked"))
    tiles = [
        (
            percent(entry["accuracy"]),
            f"accuracy of {display_name(run.advised)}, {interval_text(entry.get('accuracy_interval'))} %",
        ),
        (bytes_with_unit(entry["wire_bytes"]), "sent by all sites together, once"),
        (f"{merged:,} of {asked:,}", "sites are in the result"),
    ]
    if run.results.get("seconds"):
        tiles.append((duration(run.results["seconds"]), "from the first site to the scores"))
    return tiles


def _axis_start(shares: Sequence[Share]) -> float:
    """Return where the axis of shares begins: a multiple of 10 % below all of them."""
    return math.floor(10 * min(one.low for one in shares)) / 10


def _place(share: float, start: float) -> float:
    """Return per cent of the way from the axis's start to 100 %."""
    return round(100 * (share - start) / (1.0 - start), 2) if start < 1.0 else 100.0
