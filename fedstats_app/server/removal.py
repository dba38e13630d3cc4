"""A run without some of its clients: its heads solved again, in a folder of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from fedstats_app.base.files import read_json_file, read_json_lines, write_atomically
from fedstats_app.base.lock import lock_folder
from fedstats_app.heads import LinearHead
from fedstats_app.report.head_file import (
    DISTANCE_LIMIT,
    LABEL_MARGINS,
    SUPERSEDED,
    head_files,
    head_to_bytes,
    read_head,
)
from fedstats_app.report.method_result import UNSCORED, MethodResult
from fedstats_app.report.record import head_metadata
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.statistics_file import (
    keeps_client_statistics,
    load_client_statistics,
    load_statistics,
    save_statistics,
    take_over,
)
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics.collected import (
    CollectedStatistics,
    MergedClient,
    sum_without,
)

# Entries of a head's header that depend on the statistics that it was solved from.
_OF_THE_SOLVE = ("format", "temperature", "calibrated-on", LABEL_MARGINS, DISTANCE_LIMIT, SUPERSEDED)


@dataclass(frozen=True)
class Removal:
    """Result of removing clients from a run.

    Attributes
    ----------
    folder : Path
        The new run folder.
    methods : tuple of str
        Those whose heads were solved again.
    not_made : tuple of str
        Heads of the old folder that the new one lacks: those that were trained.
    num_clients, num_examples : int
        That are left.
    """

    folder: Path
    methods: tuple[str, ...]
    not_made: tuple[str, ...]
    num_clients: int
    num_examples: int


def remove_clients(run_folder: Path, clients: Sequence[str], output_dir: str = "") -> Removal:
    """Solve a run's heads again without some of its clients.

    All that is left is folded anew, in the order of before, from what each client sent (save-statistics = clients): the
    same bits as if they had never been in it. Where the run kept only what these clients sent, because they harm the
    others, that is subtracted: the same statistics to the rounding of float64.

    Parameters
    ----------
    run_folder : Path
        It is unchanged but for a mark in the headers of its heads.
    clients : sequence of str
        Ids, or RUN/ID where runs that extend one another have the same id.
    output_dir : str
        Where the new folder goes; by default beside the old one.

    Raises
    ------
    FileNotFoundError
        If the run kept no statistics, or not those of every client.
    ValueError
        If there is no such client, or none is left.
    """
    with lock_folder(run_folder):
        collected = load_statistics(run_folder)
        removed = [_client_named(name, collected.clients) for name in clients]
        left = tuple(client for client in collected.clients if client not in removed)
        if not left:
            raise ValueError(f"{run_folder}: without {', '.join(clients)} no client is left")
        kept_all = all(keeps_client_statistics(run_folder, client) for client in left)
        total = collected.total.emptied() if kept_all else collected.total
        for client in left if kept_all else removed:
            statistics = load_client_statistics(run_folder, client, collected.class_names)
            if kept_all:
                total.add(statistics)
            else:
                total = sum_without(total, statistics)
        rest = replace(collected, total=total, clients=left)
        clients_removed = ", ".join(f"{client.client} of run {client.run}" for client in removed)
        description = f"client {clients_removed} removed"
        return _written(run_folder, rest, description, removed, output_dir)


def edit_classes(
    run_folder: Path,
    merged: Sequence[Sequence[str]] = (),
    renamed: Mapping[str, str] = MappingProxyType({}),
    dropped: Sequence[str] = (),
    output_dir: str = "",
) -> Removal:
    """Solve a run's heads again with classes made one, renamed or left out, from its statistics alone.

    Merging is exact: the sums of classes add up, and the Gram matrix is of all samples in any case. No head predicts a
    class that is left out, whose samples stay in the statistics; the new folder then keeps none. Labels cannot be
    merged: how many samples have two of them is not known.

    Parameters
    ----------
    run_folder, output_dir
        As for :func:`remove_clients`.
    merged : sequence of sequence of str
        Classes that are one, by the name of the first.
    renamed : mapping
        From old names to new ones.
    dropped : sequence of str
        Names of classes to leave out.

    Raises
    ------
    FileNotFoundError
        If the run kept no statistics.
    ValueError
        If there is no such class, a name comes twice, labels are to be merged, or nothing is left.
    """
    with lock_folder(run_folder):
        collected = load_statistics(run_folder)
        names, targets = collected.class_names, collected.total.summed(gram=False).targets
        named = [*(name for group in merged for name in group), *renamed, *dropped]
        if unknown := [name for name in named if name not in names]:
            raise ValueError(f"{run_folder}: must be some of {', '.join(names)}, got {unknown}")
        if len(set(named)) < len(named):
            raise ValueError("each class can be merged, renamed or dropped once")
        if merged and targets is not None:
            raise ValueError("labels cannot be merged: how many samples have two of them is not known")
        first = {name: group[0] for group in merged for name in group}
        new_names = {name: renamed.get(name, first.get(name, name)) for name in names}
        kept = tuple(dict.fromkeys(name for name in new_names.values()))
        if len(kept) < len(names) - sum(len(group) - 1 for group in merged):
            raise ValueError("a new name must not be that of another class: --merge makes two classes one")
        new_ids = torch.tensor([kept.index(new_names[name]) for name in names], dtype=torch.int64)
        total = collected.total.renumbered(new_ids, len(kept))
        ids = [kept.index(name) for name in dropped]
        if len(ids) >= len(kept):
            raise ValueError(f"{run_folder}: no class is left")
        rest = replace(collected, class_names=kept, total=total)
        parts = [f"{' and '.join(group)} as one class" for group in merged]
        parts += [f"{old} renamed {new}" for old, new in renamed.items()]
        parts += [f"class {', '.join(dropped)} removed"] if dropped else []
        return _written(run_folder, rest, "; ".join(parts), (), output_dir, ids)


def _masked(head: LinearHead, dropped: Sequence[int]) -> LinearHead:
    """Copy a head so that it never predicts some classes."""
    if not dropped:
        return head
    present, weight, bias = head.present.clone(), head.weight.clone(), head.bias.clone()
    present[list(dropped)], weight[list(dropped)], bias[list(dropped)] = False, 0.0, -torch.inf
    return replace(head, present=present, weight=weight, bias=bias)


def _client_named(name: str, clients: Sequence[MergedClient]) -> MergedClient:
    run, _, client = name.rpartition("/")
    found = [merged for merged in clients if str(merged.client) == client and run in ("", merged.run)]
    if len(found) != 1:
        known = ", ".join(f"{merged.run}/{merged.client}" for merged in (found or clients)[:20])
        raise ValueError(f"client must be one of the run's, as ID or RUN/ID, such as {known}; got {name!r}")
    return found[0]


def _written(
    old: Path,
    rest: CollectedStatistics,
    description: str,
    removed: Sequence[MergedClient],
    output_dir: str,
    dropped: Sequence[int] = (),
) -> Removal:
    """Solve, write the new folder, and mark the heads of the old one; no head predicts the classes that are dropped."""
    record, results = read_json_file(old / "config.json"), read_json_file(old / "results.json")
    config = AppConfig.from_run_config(record["run_config"])
    methods = {name: method for name, method in config.configured_methods.items() if name in results["methods"]}
    gone = {client.client for client in removed}
    clients = [line for line in read_json_lines(old / "clients.jsonl") if line["client"] not in gone]
    record = {**record, "class_names": list(rest.class_names)}
    run_id = json.loads((old / "status.json").read_text(encoding="utf-8"))["run_id"]
    folder = RunFolder.create(output_dir or str(old.resolve().parent), run_id)
    entries: dict[str, object] = {}
    with ExitStack() as unfinished, lock_folder(folder.path):
        unfinished.callback(shutil.rmtree, folder.path)  # after a mistake or Ctrl-C
        folder.write_status("running")
        for name, method in methods.items():
            before, header = read_head(old / "heads" / f"{name}.safetensors")
            header["class-names"] = json.dumps(list(rest.class_names))
            head = method.head(rest.total)
            if "targets" in header and not removed:
                head = replace(head, bias=before.bias)  # with the labels' thresholds, which sites found
            head = _masked(head, dropped)
            result = _result(name, head, rest, results["methods"][name], description)
            common = {key: value for key, value in header.items() if key not in _OF_THE_SOLVE}
            own = head_metadata(result)
            folder.save_head(name, head, {**common, **own})
            entries[name] = result.to_json()
        folder.write_config({**record, "removed": description, "removed_from": str(old)})
        folder.write_clients(clients)
        folder.write_results(
            {
                "methods": entries,
                "num_clients_asked": results["num_clients_asked"],
                "num_clients_merged": len(rest.clients),
                "num_unreadable": results["num_unreadable"],
                "removed": description,
                "removed_from": str(old),
                "evaluated_on": "",
            }
        )
        if removed:
            take_over(old, folder.path, rest.clients)
        if not dropped:
            save_statistics(folder.path, rest)
        unfinished.pop_all()
    paths = head_files(old)
    for path in paths:
        head, header = read_head(path)
        by = f"{description}: {folder.path}"
        write_atomically(path, head_to_bytes(head, {**header, SUPERSEDED: by}))
    folder.write_status("completed", f"{description}, from {old}")
    not_made = tuple(path.stem for path in paths if path.stem not in methods)
    return Removal(folder.path, tuple(methods), not_made, len(rest.clients), rest.num_examples)


def _result(
    name: str, head: LinearHead, rest: CollectedStatistics, before: Mapping[str, Any], description: str
) -> MethodResult:
    """Make the entry of a head that is not evaluated yet; its bytes are those of all that had sent any."""
    report = head.report
    return MethodResult(
        method=name,
        quality=UNSCORED,
        num_examples=rest.num_examples,
        num_clients=len(rest.clients),
        uplink_bytes=before["uplink_bytes"],
        wire_bytes=before["wire_bytes"],
        solve_seconds=0.0,
        regulariser=report.regulariser or before["regulariser"],
        ridge_effective=report.ridge_effective,
        condition_number=report.condition_number,
        notes=[*report.notes, f"{description}; the bytes are those of before"],
        parameters=dict(report.parameters),
    )
