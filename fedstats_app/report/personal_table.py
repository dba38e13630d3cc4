"""Personal models side by side as a plain-text table: accuracy over the clients, and what it cost."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fedstats_app.methods import display_name
from fedstats_app.report.personal_result import PersonalResult
from fedstats_app.report.text_columns import GAP, WIDTH, aligned, cut, ruled, three_figures, widths_of

_HEADINGS = (
    "personal models",
    "mean (%)",
    "deviation",
    "pooled (%)",
    "clients",
    "failed",
    "MB down",
    "MB up",
    "passes",
    "seconds",
)
_NAMES = {
    "local-only": "local training only",
    "one-shot": "FedCGS one-shot",
    "one-shot-sum": "FedCGS one-shot, eq. 12",
    "fedavg": "FedAvg",
    "fedavg-ft": "FedAvg, fine-tuned",
    "fedproto": "FedProto",
}
_LONGEST_NAME = 26


def approach_name(approach: str) -> str:
    """Spell an approach for people: "closed form, Fed3R" for `closed-form-fed3r`; an unknown name stays as it is."""
    for prefix, words in (("global-", "global head, "), ("closed-form-", "closed form, ")):
        if approach.startswith(prefix):
            return words + display_name(approach.removeprefix(prefix))
    return _NAMES.get(approach, approach)


def personal_table(results: Sequence[PersonalResult]) -> str:
    """Lay out one line per approach, and below them what else happened.

    "mean" and "deviation" are over the clients' accuracies on their own test samples, every client counting alike;
    "pooled" is the share of all these samples that is predicted right. Megabytes (10^6 bytes) are those of all
    clients, and so are the forward passes of samples through the backbone, of which a backward pass counts as two.

    Parameters
    ----------
    results : sequence of PersonalResult
        In the order they are to be shown.

    Returns
    -------
    str
        ASCII lines of at most 120 columns (but for names outside ASCII and costs beyond 10^12), no final line break.
    """
    rows = [_cells(result) for result in results]
    widths = widths_of([_HEADINGS, *rows])
    head, *body = (aligned(line, widths, {0}) for line in (_HEADINGS, *rows))
    notes = [
        line
        for result in results
        for note in result.notes
        for line in textwrap.wrap(f"{approach_name(result.approach)}: {note}", WIDTH, subsequent_indent=GAP)
    ]
    return "\n".join([ruled([head], body), *notes])


def _cells(result: PersonalResult) -> tuple[str, ...]:
    tested = bool(result.num_test)
    return (
        cut(approach_name(result.approach), _LONGEST_NAME),
        f"{100 * result.mean:.2f}" if tested else "-",
        f"{100 * result.std:.2f}" if tested else "-",
        f"{100 * result.weighted_mean:.2f}" if tested else "-",
        f"{len(result.num_test):,}",
        f"{len(result.failures):,}" if result.failures else "-",
        three_figures(result.bytes_down / 1e6),
        three_figures(result.bytes_up / 1e6),
        f"{result.forward_passes:,}" if result.forward_passes < 1e6 else f"{result.forward_passes:.3g}",
        f"{result.seconds:,.0f}",
    )
