"""What one training, from one head, is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from fedstats_app.settings.option import Options
from fedstats_app.training.trainers import Trainer
from fedstats_app.training.training_options import TuningOptions

if TYPE_CHECKING:
    from fedstats_app.backbones.backbone import Backbone
    from fedstats_app.grid.client_grid import ClientGrid
    from fedstats_app.grid.progress import Progress
    from fedstats_app.report.run_folder import RunFolder
    from fedstats_app.report.state import SolvedHead
    from fedstats_app.training.model import TrainingRequest
    from fedstats_app.training.samples import Samples

Group = TypeVar("Group", bound=Options)


@dataclass(frozen=True)
class Session:
    """What one training, from one head, is given.

    Attributes
    ----------
    trainer : Trainer
        Who trains.
    tuning : TuningOptions
        For how long, and how it is scored.
    groups : mapping
        All options of the run by their type.
    start : str
        Name of the head to start from.
    head : SolvedHead
        That head.
    made : bool
        Whether it was made rather than solved, so that no statistics, and no features, were needed for it.
    number : int
        Of the training in the run.
    request : TrainingRequest
        What all trainings from the head tell clients; the trainer says the rest.
    backbone : Backbone
        Pre-trained; it stays as it is.
    grid : ClientGrid
        The clients as nodes.
    clients : mapping
        From those that can train to their number of samples.
    min_clients : int
        With fewer answers a round does not count.
    mask_absent : bool
        Whether classes without samples are never predicted.
    test_samples : callable or None
        From whether the head takes features that are there already to the server's test samples as a model takes them;
        None where models are scored on what clients hold out.
    known_score : tuple of float or None
        Accuracy and mean loss of the head on what clients hold out, as stage 1 found them, at temperature 1.
    folder : RunFolder
        Where rounds, and whatever a training goes on from, are kept.
    resume : bool
        Whether to go on from there.
    progress : Progress
        What is said.
    """

    trainer: Trainer
    tuning: TuningOptions
    groups: Mapping[type[Options], Options]
    start: str
    head: SolvedHead
    made: bool
    number: int
    request: TrainingRequest
    backbone: Backbone
    grid: ClientGrid
    clients: Mapping[int, int]
    min_clients: int
    mask_absent: bool
    test_samples: Callable[[bool], Samples] | None
    known_score: tuple[float, float] | None
    folder: RunFolder
    resume: bool
    progress: Progress

    @property
    def name(self) -> str:
        """Name of the training and of its head, such as "fedcof-probe"."""
        return f"{self.start}-{self.trainer.name}"

    def options(self, kind: type[Group]) -> Group:
        """Return the run's options of a type."""
        found: Group = self.groups[kind]  # type: ignore[assignment]  # each stands under its own type
        return found
