"""The statistics that a run collected as one safetensors file, `statistics.safetensors` in its folder.

It holds `class-counts` (C,) int64, `class-sums` (C, d) float64, with a Gram matrix `gram` (d (d + 1) / 2,) float64, its
upper triangle row by row, with several labels or numbers a sample `target-...` (the fields of `TargetSums`), for FedCOF
and FedRoot `row-class-ids` and `row-counts` (M,) int64 and `row-sums` (M, d) as they came, and for FedRoot `scatter`
(d (d + 1) / 2,) float64, the sum of the factors' products, and `left-out` ()
float64. Float64 because a later run adds to them, and is to end where one run would have.

The file is sensitive: it holds the label histogram and class means of all clients together and, with rows, of each.
Only its owner can read it, and its header says so.

`clients/` has one such file per client, if a run keeps them, so that a client can be taken out again: `row-...`
as above; with a Gram matrix the scatter about the rows' means, `within`, or of few samples `within-factor` (r, d),
or for exact sums `gram`, in float32 if that loses nothing; for FedRoot `scatter-values` (k,),
`scatter-directions` (k, d), `left-out` (). They are of one site each, and so more sensitive than the sums.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from fedstats_app.base.files import read_tensors, refusing_others, write_tensors
from fedstats_app.statistics import (
    ClassMeanRows,
    ClientStatistics,
    FeatureStatistics,
    ScatterFactor,
    StatisticsSpec,
    TargetSums,
    TriangularFactor,
)
from fedstats_app.statistics.accumulation import pack_upper, unpack_upper
from fedstats_app.statistics.collected import CollectedStatistics, MergedClient, StatisticsSum

STATISTICS_FORMAT = "fedstats-statistics-2"
STATISTICS_FILE = "statistics.safetensors"
SENSITIVE = (
    "yes: class counts and sums of all clients' features, with rows those of single clients; features can be inverted. "
    "Keep it from everyone who may not read the clients' replies, and delete it if no run is to extend it."
)
READABLE_BY_OWNER = 0o600
_IDS = "row-class-ids"


def save_statistics(folder: Path, collected: CollectedStatistics) -> Path:
    """Write all that a run collected, with the runs that it extends; the same statistics give the same bytes."""
    total = collected.total
    summed = total.summed()
    tensors = {"class-counts": summed.class_counts, "class-sums": summed.class_sums}
    if summed.gram is not None:
        tensors["gram"] = pack_upper(summed.gram)
    if total.keeps_rows:
        tensors |= _rows_to_tensors(total.rows())
    if total.has_scatter:
        low_rank = total.low_rank(ClassMeanRows.zeros(total.num_classes, total.feature_dim))  # rows are there already
        tensors["scatter"] = pack_upper(low_rank.scatter)
        tensors["left-out"] = torch.tensor(low_rank.left_out, dtype=torch.float64)
    if summed.targets is not None:
        tensors |= _targets_to_tensors(summed.targets)
    metadata = {
        "format": STATISTICS_FORMAT,
        "sensitive": SENSITIVE,
        "class-names": json.dumps(list(collected.class_names)),
        "specification": json.dumps(collected.spec.to_dict()),
        "rows-and-pairs": json.dumps([total.num_rows, total.num_pairs]),
        "backbone-fingerprint": collected.backbone_fingerprint,
        "clients": json.dumps([asdict(client) for client in collected.clients]),
    }
    path = folder / STATISTICS_FILE
    write_tensors(path, tensors, metadata, mode=READABLE_BY_OWNER)
    return path


def load_statistics(run_folder: str | Path) -> CollectedStatistics:
    """Read the statistics of a run folder, or of the file in it, to the last bit.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged or of another format.
    """
    path = Path(run_folder).expanduser()
    path = path / STATISTICS_FILE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(
            f"no statistics at {path}; a run leaves {STATISTICS_FILE} in its folder if at least one client was merged, "
            "unless save-statistics is none"
        )
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != STATISTICS_FORMAT:
        raise ValueError(f"{path}: format must be {STATISTICS_FORMAT!r}, got {metadata.get('format')!r}")
    with refusing_others(path, "collected statistics"):
        return CollectedStatistics(
            tuple(json.loads(metadata["class-names"])),
            StatisticsSpec.from_dict(json.loads(metadata["specification"])),
            _sum_from_tensors(tensors, *json.loads(metadata["rows-and-pairs"])),
            metadata["backbone-fingerprint"],
            tuple(MergedClient(**client) for client in json.loads(metadata["clients"])),
        )


def _targets_to_tensors(targets: TargetSums) -> dict[str, Tensor]:
    """Name the tensors of sums by target, and their kind by a letter."""
    kind = torch.tensor(list(targets.kind[0].encode()), dtype=torch.uint8)
    return {"target-kind": kind, **{f"target-{name}": tensor for name, tensor in targets.tensors.items()}}


def _targets_from_tensors(found: Mapping[str, Tensor]) -> TargetSums | None:
    """Read the sums by target that :func:`_targets_to_tensors` gave."""
    if "target-kind" not in found:
        return None
    kind = bytes(found["target-kind"].tolist()).decode()
    return TargetSums((kind,), **{name: found[f"target-{name}"] for name in TargetSums.zeros(kind, 0, 0).tensors})


def _rows_to_tensors(rows: ClassMeanRows) -> dict[str, Tensor]:
    """Name the tensors of rows as the module's text does."""
    return {_IDS: rows.class_ids, "row-counts": rows.counts, "row-sums": rows.class_sums}


def _rows_from_tensors(found: Mapping[str, Tensor], num_classes: int) -> ClassMeanRows:
    """Read the rows that :func:`_rows_to_tensors` gave."""
    return ClassMeanRows(found[_IDS], found["row-counts"], num_classes=num_classes, class_sums=found["row-sums"])


def _sum_from_tensors(found: Mapping[str, Tensor], num_rows: int, num_pairs: int) -> StatisticsSum:
    counts, sums = found["class-counts"], found["class-sums"]
    if not all(bool(torch.isfinite(tensor).all()) for tensor in found.values()):
        raise ValueError("all numbers must be finite")
    return StatisticsSum.resumed(
        FeatureStatistics(counts, sums, _square(found, "gram", sums.shape[1]), _targets_from_tensors(found)),
        _rows_from_tensors(found, len(counts)) if _IDS in found else None,
        num_rows=num_rows,
        num_pairs=num_pairs,
        scatter=_square(found, "scatter", sums.shape[1]),
        left_out=float(found.get("left-out", 0.0)),
    )


def _square(found: Mapping[str, Tensor], name: str, dim: int) -> Tensor | None:
    if name not in found:
        return None
    if found[name].shape != (dim * (dim + 1) // 2,):
        raise ValueError(f"{name} must be the upper triangle of ({dim}, {dim}), got {tuple(found[name].shape)}")
    return unpack_upper(found[name], dim).to(torch.float64)


CLIENT_FORMAT = "fedstats-client-statistics-2"
CLIENTS_FOLDER = "clients"


def save_client_statistics(
    folder: Path, client: int, digest: str, statistics: ClientStatistics, class_names: Sequence[str]
) -> Path:
    """Write what a client sent, with class names in the order of their ids.

    Its digest is :func:`fedstats_app.statistics.client_digest`'s. The file's name has the client's id and the first
    digits of the digest, since runs can have clients of the same id.
    """
    metadata = {
        "format": CLIENT_FORMAT,
        "digest": digest,
        "class-names": json.dumps(list(class_names)),
    }
    path = _path_of(folder, client, digest)
    path.parent.mkdir(exist_ok=True, mode=0o700)
    write_tensors(path, client_to_tensors(statistics), metadata, mode=READABLE_BY_OWNER)
    return path


def forget_client_statistics(folder: Path) -> None:
    """Delete what an interrupted first stage kept of single clients."""
    shutil.rmtree(folder / CLIENTS_FOLDER, ignore_errors=True)


def keeps_client_statistics(folder: Path, client: MergedClient) -> bool:
    """Return whether a run folder holds the statistics of a single client."""
    return _path_of(folder, client.client, client.digest).is_file()


def load_client_statistics(folder: Path, client: MergedClient, class_names: Sequence[str]) -> ClientStatistics:
    """Return what a client sent, to the bit, with the ids of `class_names`, which has all classes of its run.

    Raises
    ------
    FileNotFoundError
        If it was not kept.
    ValueError
        If the file is damaged or of another client.
    """
    path = _path_of(folder, client.client, client.digest)
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: what client {client.client} of run {client.run} sent was not kept by itself "
            "(save-statistics = clients), so it cannot be told apart from the others"
        )
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != CLIENT_FORMAT or metadata.get("digest") != client.digest:
        raise ValueError(f"{path} must hold the statistics of client {client.client} of run {client.run}, and does not")
    position = {name: index for index, name in enumerate(class_names)}
    with refusing_others(path, "a client's statistics"):
        ids = torch.tensor([position[name] for name in json.loads(metadata["class-names"])], dtype=torch.int64)
        found = client_from_tensors({**tensors, _IDS: ids.index_select(0, tensors[_IDS])}, len(class_names))
        if found.targets is not None:
            found.targets = found.targets.placed(ids, len(class_names))
        return found


def take_over(earlier: Path, folder: Path, clients: Sequence[MergedClient]) -> list[MergedClient]:
    """Give a run folder what an earlier one has of these clients, and return those of which it has nothing.

    The files are linked where the file system can do that, and then take no more room; else they are copied.
    """
    missing = []
    for client in clients:
        path, new = (_path_of(run, client.client, client.digest) for run in (earlier, folder))
        if not path.is_file():
            missing.append(client)
            continue
        new.parent.mkdir(exist_ok=True, mode=0o700)
        new.unlink(missing_ok=True)
        try:
            os.link(path, new)
        except OSError:
            shutil.copy2(path, new)
    return missing


def _path_of(folder: Path, client: int, digest: str) -> Path:
    return folder / CLIENTS_FOLDER / f"{client}-{digest[:16] or 'empty'}.safetensors"


def client_to_tensors(statistics: ClientStatistics) -> dict[str, Tensor]:
    """Name the tensors of a client's statistics as this module's text does, those that came as float32 in float32."""
    tensors = _rows_to_tensors(statistics.rows)
    if statistics.targets is not None:
        tensors |= _targets_to_tensors(statistics.targets)
    if statistics.given_gram is not None:
        tensors["gram"] = _in_few_bytes(pack_upper(statistics.given_gram))
    elif isinstance(statistics.within, TriangularFactor):
        tensors["within-factor"] = _in_few_bytes(statistics.within.trapezoid)
    elif statistics.within is not None:
        tensors["within"] = _in_few_bytes(pack_upper(statistics.within))
    if statistics.scatter is not None:
        tensors |= {"scatter-values": statistics.scatter.values, "scatter-directions": statistics.scatter.directions}
        tensors["left-out"] = torch.tensor(statistics.scatter.left_out, dtype=torch.float64)
    return tensors


def _in_few_bytes(tensor: Tensor) -> Tensor:
    """Return float64 values that came as float32 as what they were."""
    small = tensor.to(torch.float32)
    return small if torch.equal(small.to(torch.float64), tensor) else tensor


def client_from_tensors(found: Mapping[str, Tensor], num_classes: int) -> ClientStatistics:
    """Read the statistics that :func:`client_to_tensors` gave, to the bit."""
    rows, scatter = _rows_from_tensors(found, num_classes), None
    within: Tensor | TriangularFactor | None = _square(found, "within", rows.feature_dim)
    if "within-factor" in found:
        within = TriangularFactor(found["within-factor"].to(torch.float64))
    if "left-out" in found:
        scatter = ScatterFactor(found["scatter-values"], found["scatter-directions"], float(found["left-out"]))
    gram, targets = _square(found, "gram", rows.feature_dim), _targets_from_tensors(found)
    return ClientStatistics(rows, gram, scatter, within=within, targets=targets)
