"""FedCOF's head at the server: one symmetric product against the papers' way of one covariance matrix per class.

    python -m research.benchmarks.server_solve --clients 9275 --classes 1203 --rows 54590 --dim 1280

These defaults are iNaturalist-Users-120K with MobileNetV2. Each side runs in its own process on the same rows, made
from the seed; seconds and peak memory are those of the solve alone, above its input. The papers' side needs 8 to 16 GB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedstats_app.heads import solve_fedcof
from fedstats_app.statistics import ClassMeanRows
from research.benchmarks.fedcof_rows import Size, fedcof_as_published, synthetic_rows
from research.benchmarks.lines import parser_of
from research.benchmarks.memory import with_peak_memory

SIDES = ("ours", "papers")


def measure(size: Size, *, shrinkage: float = 1.0, seed: int = 0) -> dict[str, float]:
    """Return seconds and peak MB of both sides, their ratios, and by how much their heads differ."""
    with tempfile.TemporaryDirectory() as folder:
        results = {side: _run_in_own_process(side, size, shrinkage, seed, Path(folder)) for side in SIDES}
        heads = [np.load(_head_file(Path(folder), side)) for side in SIDES]
    ours, papers = results["ours"], results["papers"]
    return {
        **{f"{side}_{key}": value for side, result in results.items() for key, value in result.items()},
        "threads": torch.get_num_threads(),
        "speedup": papers["seconds"] / ours["seconds"],
        "memory_ratio": ours["peak_mb"] / papers["peak_mb"],
        "max_weight_difference": float(np.abs(heads[0] - heads[1]).max()),
    }


def _run_in_own_process(side: str, size: Size, shrinkage: float, seed: int, folder: Path) -> dict[str, float]:
    sizes = [f"--{name}={value}" for name, value in vars(size).items()]
    command = [
        sys.executable,
        "-m",
        "research.benchmarks.server_solve",
        *sizes,
        f"--shrinkage={shrinkage}",
        f"--seed={seed}",
    ]
    root = Path(__file__).parents[2]
    finished = subprocess.run(
        [*command, f"--side={side}", f"--folder={folder}"], cwd=root, stdout=subprocess.PIPE, check=True
    )
    measured: dict[str, float] = json.loads(finished.stdout)
    return measured


def _head_file(folder: Path, side: str) -> Path:
    return folder / f"{side}.npy"


def _run_side(side: str, size: Size, shrinkage: float, seed: int, folder: Path) -> dict[str, float]:
    _solve(side, *synthetic_rows(Size(4, 4, 8, 16), seed), 4, shrinkage)  # libraries load and threads start
    class_ids, counts, values = synthetic_rows(size, seed)
    if side == "ours":
        values *= counts.unsqueeze(1)  # what travels is sums, and both sides get their own input

    def timed() -> tuple[Tensor, float]:
        start = time.perf_counter()
        weight = _solve(side, class_ids, counts, values, size.classes, shrinkage)
        return weight, time.perf_counter() - start

    (weight, seconds), peak_mb = with_peak_memory(timed)
    np.save(_head_file(folder, side), weight.numpy())
    return {"seconds": seconds, "peak_mb": peak_mb}


def _solve(side: str, class_ids: Tensor, counts: Tensor, values: Tensor, num_classes: int, shrinkage: float) -> Tensor:
    if side == "papers":
        return fedcof_as_published(class_ids, counts, values, num_classes, shrinkage)
    rows = ClassMeanRows(class_ids, counts, num_classes=num_classes, class_sums=values)
    return solve_fedcof(rows, shrinkage=shrinkage).weight


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--clients", type=int, default=9275)
    parser.add_argument("--classes", type=int, default=1203)
    parser.add_argument("--rows", type=int, default=54590)
    parser.add_argument("--dim", type=int, default=1280)
    parser.add_argument("--shrinkage", type=float, default=1.0, help="gamma, the papers' value by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    size = Size(options.clients, options.classes, options.rows, options.dim)
    if options.side:
        print(json.dumps(_run_side(options.side, size, options.shrinkage, options.seed, options.folder)))
        return
    measured = measure(size, shrinkage=options.shrinkage, seed=options.seed)
    print(json.dumps({**vars(size), "shrinkage": options.shrinkage, "seed": options.seed, **measured}))


if __name__ == "__main__":
    main()
