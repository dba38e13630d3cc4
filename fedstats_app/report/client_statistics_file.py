"""What each client sent, one safetensors file each in `clients/` of a run folder: a client can then be taken out again.

For every specification I: `I.row-class-ids` and `I.row-counts` (M,) int64 and `I.row-sums` (M, d) as they came; with a
Gram matrix `I.gram` (d (d + 1) / 2,), its upper triangle row by row, or of few samples `I.gram-factor` (r, d), in
float32 where that loses nothing; for FedRoot `I.scatter-values` (k,), `I.scatter-directions` (k, d), `I.left-out` ().

The files are more sensitive than the sums, since each is of one site; only their owner can read them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedstats_app.report.statistics_file import READABLE_BY_OWNER
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, GramFactor, MergedClient, ScatterFactor
from fedstats_app.statistics.accumulation import pack_upper, unpack_upper
from fedstats_app.storage.files import read_tensors, write_tensors

CLIENT_FORMAT = "fedstats-client-statistics-1"
CLIENTS_FOLDER = "clients"


def save_client_statistics(
    folder: Path, client: int, digest: str, statistics: Sequence[ClientStatistics], class_names: Sequence[str]
) -> Path:
    """Write what a client of this run sent.

    Parameters
    ----------
    folder : Path
        The run folder.
    client : int
        Its id in the run.
    digest : str
        :func:`fedstats_app.statistics.client_digest` of it.
    statistics : sequence of ClientStatistics
        One per specification.
    class_names : sequence of str
        In the order of their ids.

    Returns
    -------
    Path
        `clients/CLIENT-DIGEST.safetensors`, with the first digits of the digest: runs can have clients of the same id.
    """
    tensors: dict[str, Tensor] = {}
    for index, one in enumerate(statistics):
        tensors |= {f"{index}.{name}": tensor for name, tensor in _tensors(one).items()}
    metadata = {
        "format": CLIENT_FORMAT,
        "digest": digest,
        "class-names": json.dumps(list(class_names)),
        "num-specifications": str(len(statistics)),
    }
    path = _path_of(folder, client, digest)
    path.parent.mkdir(exist_ok=True, mode=0o700)
    write_tensors(path, tensors, metadata, mode=READABLE_BY_OWNER)
    return path


def load_client_statistics(folder: Path, client: MergedClient, class_names: Sequence[str]) -> list[ClientStatistics]:
    """Return what a client sent, to the bit.

    Parameters
    ----------
    folder : Path
        The run folder.
    client : MergedClient
        As the run's statistics name it.
    class_names : sequence of str
        The order of the ids wanted; it has all classes of the client's run.

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
            "(save-client-statistics), so it cannot be told apart from the others"
        )
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != CLIENT_FORMAT or metadata.get("digest") != client.digest:
        raise ValueError(f"{path} must hold the statistics of client {client.client} of run {client.run}, and does not")
    position = {name: index for index, name in enumerate(class_names)}
    ids = torch.tensor([position[name] for name in json.loads(metadata["class-names"])], dtype=torch.int64)
    number = int(metadata["num-specifications"])
    return [_statistics(tensors, f"{index}.", ids, len(class_names)) for index in range(number)]


def take_over(earlier: Path, folder: Path, clients: Sequence[MergedClient]) -> list[MergedClient]:
    """Give a run folder what an earlier one has of these clients, and return those of which it has nothing.

    The files are linked where the file system can do that, and then take no more room; else they are copied.
    """
    missing = []
    for one in clients:
        path, new = (_path_of(run, one.client, one.digest) for run in (earlier, folder))
        if not path.is_file():
            missing.append(one)
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


def _tensors(one: ClientStatistics) -> dict[str, Tensor]:
    tensors = {"row-class-ids": one.rows.class_ids, "row-counts": one.rows.counts, "row-sums": one.rows.class_sums}
    if one.gram_factor is not None:
        tensors["gram-factor"] = _in_few_bytes(one.gram_factor.trapezoid)
    elif one.gram is not None:
        tensors["gram"] = _in_few_bytes(pack_upper(one.gram))
    if one.scatter is not None:
        tensors |= {"scatter-values": one.scatter.values, "scatter-directions": one.scatter.directions}
        tensors["left-out"] = torch.tensor(one.scatter.left_out, dtype=torch.float64)
    return tensors


def _in_few_bytes(tensor: Tensor) -> Tensor:
    """Return float64 values that came as float32 as what they were."""
    small = tensor.to(torch.float32)
    return small if torch.equal(small.to(torch.float64), tensor) else tensor


def _statistics(tensors: Mapping[str, Tensor], prefix: str, ids: Tensor, num_classes: int) -> ClientStatistics:
    found = {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}
    class_sums = found["row-sums"]
    rows = ClassMeanRows(
        ids[found["row-class-ids"]], found["row-counts"], num_classes=num_classes, class_sums=class_sums
    )
    gram: Tensor | GramFactor | None = None
    if "gram-factor" in found:
        gram = GramFactor(found["gram-factor"].to(torch.float64))
    elif "gram" in found:
        gram = unpack_upper(found["gram"].to(torch.float64), class_sums.shape[1])
    scatter = None
    if "left-out" in found:
        scatter = ScatterFactor(found["scatter-values"], found["scatter-directions"], float(found["left-out"]))
    return ClientStatistics(rows, gram, scatter)
