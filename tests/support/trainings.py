"""Made trainings: curves whose every number is known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.training_record import RoundRecord, TrainingResult
from fedstats_app.training.trainers import TRAINERS


def make_training(
    start: str,
    accuracies: Sequence[float | None],
    *,
    stage: str = "probe",
    up: int = 1000,
    down: int = 2000,
    passes: int = 10,
    seconds: float = 0.5,
    **changes: Any,
) -> TrainingResult:
    """Return a training with these accuracies from round 0 on; every round costs the same."""
    rounds = [
        RoundRecord(stage, start, 0, accuracies[0], 2.0),
        *(
            RoundRecord(stage, start, number, accuracy, 1.0, 0.9, 30, 1, up, down, passes, seconds)
            for number, accuracy in enumerate(accuracies[1:], start=1)
        ),
    ]
    values: dict[str, Any] = {"name": f"{start}-{stage}", "stage": stage, "start": start, "rounds": rounds}
    if stage in TRAINERS:
        values |= {"display_name": TRAINERS[stage].display_name}
    return TrainingResult(**{**values, **changes})


def write_run(
    output_dir: Path, trainings: Sequence[TrainingResult], methods: dict[str, dict[str, Any]], run_id: int = 1
) -> Path:
    """Write the run folder of a completed run with these results."""
    folder = RunFolder.create(str(output_dir), run_id)
    folder.write_config({"data": "made", "backbone": {"name": "random:tiny"}, "num_clients": 3})
    for training in trainings:
        for record in training.rounds:
            folder.append_round(record)
    folder.write_results({"methods": methods, "training": {one.name: one.to_json() for one in trainings}})
    folder.write_status("completed")
    return folder.path
