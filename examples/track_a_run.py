"""A finished run in TensorBoard (`pip install tensorboard`): its files are JSON, and other trackers read them alike."""

import json
import sys
from pathlib import Path
from typing import Any


def main(run: Path, writer: Any) -> None:
    """Write every number of a run's rounds and results to a writer with TensorBoard's ``add_scalar``."""
    rounds = run / "rounds.jsonl"
    for line in rounds.read_text().splitlines() if rounds.exists() else ():
        entry = json.loads(line)
        write(writer, f"{entry['start']}-{entry['stage']}", entry, step=entry["round"])
    results = json.loads((run / "results.json").read_text())
    for name, entry in results["methods"].items():
        write(writer, name, entry, step=1)


def write(writer: Any, name: str, entry: dict[str, Any], step: int) -> None:
    """Write the numbers of an entry; what is not a number, or is unknown, is left out."""
    for key, value in entry.items():
        if isinstance(value, int | float):
            writer.add_scalar(f"{name}/{key}", value, step)


if __name__ == "__main__":
    from torch.utils.tensorboard import SummaryWriter

    folder = Path(sys.argv[1]).expanduser()
    with SummaryWriter(str(folder / "tensorboard")) as tensorboard:
        main(folder, tensorboard)
