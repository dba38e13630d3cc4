"""What a report shows of the sites: who is in it and how they fare, which classes they have, what left them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.sections import Share
from fedstats_app.report.wording import counted, percent, size

_MOST_LABEL_ROWS, _MOST_LABEL_COLUMNS = 60, 200


def site_shares(run: RunRecord) -> list[Share]:
    """Return the accuracy of the head to take at each site that evaluated, the worst first."""
    spread = run.methods.get(run.advised, {}).get("client_accuracy") or {}
    numbers = run.results.get("evaluation_examples") or {}
    found = [
        Share.of(run.site(client), share, int(numbers[client]))
        if numbers.get(client)
        else Share(run.site(client), share, share, share, 0)
        for client, share in spread.get("by_client", {}).items()
    ]
    return sorted(found, key=lambda one: one.share)


def label_rows(run: RunRecord) -> list[dict[str, Any]]:
    """Return how each class is spread over the sites, where the run shows that: rows of shares from 0 to 1.

    Empty with more classes or sites than a page has room for.
    """
    if not run.shows_labels or not 0 < len(run.clients) <= _MOST_LABEL_COLUMNS:
        return []
    if not 0 < len(run.class_names) <= _MOST_LABEL_ROWS:
        return []
    table = [[float((one.get("class_shares") or {}).get(name, 0.0)) for one in run.clients] for name in run.class_names]
    largest = max(map(max, table)) or 1.0
    rows = []
    for name, shares in zip(run.class_names, table, strict=True):
        # The square root makes small shares visible beside large ones.
        cells = [
            (column, round(math.sqrt(share / largest), 3), percent(share))
            for column, share in enumerate(shares)
            if share
        ]
        rows.append({"name": name, "cells": cells, "sites": sum(share > 0 for share in shares)})
    return rows


def outcome_rows(run: RunRecord) -> list[dict[str, Any]]:
    """Return how many sites ended how, those that count first."""
    numbers: dict[str, int] = defaultdict(int)
    for one in run.clients:
        numbers[one.get("outcome", "?")] += 1
    meanings = {
        "merged": "in the result",
        "known": "already in the run that this one extends",
        "refused": "refused by its owner's policy",
        "failed": "failed, or did not answer in time",
        "rejected": "answered with something that must not be used",
    }
    return [
        {"outcome": outcome, "meaning": meanings.get(outcome, outcome), "number": numbers[outcome]}
        for outcome in sorted(numbers, key=lambda one: list(meanings).index(one) if one in meanings else 9)
    ]


def left_out(run: RunRecord) -> list[tuple[str, str, str]]:
    """Return site, outcome and reason of everyone who is not in the result."""
    sites = [
        (run.site(one["client"]), str(one["outcome"]), str(one.get("reason", "")))
        for one in run.clients
        if one.get("outcome") not in ("merged", "known")
    ]
    return sites + [(f"machine {node}", "not asked", why) for node, why in run.results.get("refused_nodes", {}).items()]


def disclosed(run: RunRecord) -> list[dict[str, Any]]:
    """Return what left the sites, a row per kind of answer: how many sites, how many bytes, which fields."""
    kinds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in run.disclosure:
        kinds[str(line.get("message", "?"))].append(line)
    return [_kind(message, lines) for message, lines in kinds.items()]


_MESSAGES = {
    "query.clients": "who takes part",
    "query.statistics": "statistics of the features, once",
    "evaluate.heads": "scores of the heads",
    "evaluate.model": "scores of a model in training",
    "evaluate.mezo": "scores of a model in training",
    "evaluate.personal": "scores of personal heads",
    "train.mezo": "losses and their slopes, for training",
    "train.personalise": "updates and scores of personal models",
    "train.personal_heads": "scores of personal heads",
    "train.prototypes": "class means, in training",
}


def _kind(message: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sizes = [int(line.get("bytes", 0)) for line in lines]
    fields: dict[str, dict[str, Any]] = {}
    for line in lines:
        for one in line.get("fields", []):
            found = fields.setdefault(one["field"], {"dtype": one["dtype"], "sites": 0, "bytes": 0, "shapes": []})
            found["sites"] += 1
            found["bytes"] += one["bytes"]
            found["shapes"].append(tuple(one["shape"]))
    return {
        "message": message,
        "title": _MESSAGES.get(message, "weights, in training" if message.startswith("train") else "answers"),
        "from": counted(
            len({line.get("client") for line in lines}), "machine" if message == "query.clients" else "site"
        ),
        "replies": sum(int(line.get("num_replies", 1)) for line in lines),
        "all": size(sum(sizes)),
        "most": size(max(sizes)),
        "errors": sum(len(line.get("errors", [])) for line in lines),
        "suppressed": sum(int(line.get("classes_suppressed", 0)) > 0 for line in lines),
        "fields": [
            {
                "name": name,
                "dtype": found["dtype"],
                "sites": found["sites"],
                "shape": _shapes(found["shapes"]),
                "all": size(found["bytes"]),
            }
            for name, found in fields.items()
        ],
    }


def _shapes(shapes: Iterable[tuple[int, ...]]) -> str:
    """Return the shape of a field, with ranges where sites differ: "(1 to 6) x 1280"."""
    found = set(shapes)
    if found == {()}:
        return "one value"
    if len({len(shape) for shape in found}) > 1:
        return "various"
    extents = [(min(sizes), max(sizes)) for sizes in zip(*found, strict=True)]
    return " x ".join(f"{low:,}" if low == high else f"({low:,} to {high:,})" for low, high in extents)
