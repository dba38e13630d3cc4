"""Stage 2 of a run, on the server: one training per head to start from, evaluated, recorded, resumable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.config import AppConfig
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.heads import LinearHead, SolveReport
from fedstats_app.outcomes.training_record import TrainingResult
from fedstats_app.results import RunFolder
from fedstats_app.results.record import trained_head_metadata, versions
from fedstats_app.results.resume import SavedHead
from fedstats_app.results.tuned_backbone import Normalisation, with_module
from fedstats_app.server.evaluation_data import ServerTestSet
from fedstats_app.server.head_training import HeadTraining
from fedstats_app.server.mezo import MezoTraining
from fedstats_app.statistics import FeatureMap, IdentityMap
from fedstats_app.training.model import TunedModel
from fedstats_app.training.start_heads import random_head, zero_head


@dataclass
class FineTuningStage:
    """Trains from every head that the run asks for.

    Attributes
    ----------
    config, folder, backbone, class_names
        Of the run.
    grid : ClientGrid
        The one that stage 1 ran on.
    clients : mapping
        From the clients that can train to their number of samples.
    heads : mapping
        From method to what stage 1 solved.
    test_set : ServerTestSet or None
        None where models are evaluated on what clients hold out.
    holdout : float
        The share that they do.
    data_name : str
        For the metadata of heads.
    align_names : bool
        Whether clients need the class names to align their labels.
    say : callable
        Prints a line.
    known_scores : mapping
        From method to accuracy and mean loss of its head, where clients need not be asked for them again.
    """

    config: AppConfig
    folder: RunFolder
    backbone: Backbone
    class_names: tuple[str, ...]
    grid: ClientGrid
    clients: Mapping[int, int]
    heads: Mapping[str, SavedHead]
    test_set: ServerTestSet | None
    data_name: str
    holdout: float
    align_names: bool
    say: Callable[[str], None]
    known_scores: Mapping[str, tuple[float, float]]

    def run(self) -> list[TrainingResult]:
        """Train from each head in turn; every finished training is saved before the next begins."""
        results = []
        for number, name in enumerate(self._start_names()):
            start = self._start_head(name)
            mezo = self.config.tuning.fine_tune == "fedmezo"
            training = MezoTraining(self, name, start, number) if mezo else HeadTraining(self, name, start)
            results.append(training.run())
            self._save(results[-1], start.feature_map, training.model, start.head.present)
        if self.config.run.plots and any(result.final_accuracy is not None for result in results):
            from fedstats_app.results.plots.fine_tuning import plot_training

            self.folder.plots_path.mkdir(exist_ok=True)
            title = f"{self.data_name}, {self.config.backbone.backbone}, {len(self.clients)} clients"
            plot_training(results, self.folder.plots_path / "fine_tuning.png", title)
        return results

    def _save(self, result: TrainingResult, feature_map: FeatureMap, model: TunedModel, present: Tensor) -> None:
        """Write the head, the backbone if it was tuned, and what the training achieved."""
        metadata = trained_head_metadata(
            self.config,
            self.data_name,
            result,
            feature_map,
            self.clients,
            self.backbone,
            self.class_names,
            versions(),
        )
        normalisation: Normalisation = "groupnorm" if self.config.tuning.batch_norm == "groupnorm" else "batch"
        tuned = None if model.backbone is None else with_module(self.backbone, model.backbone, f"tuned, {result.name}")
        self.folder.save_head(result.name, model.to_head(present), metadata, tuned=tuned, normalisation=normalisation)
        self.folder.add_training(result.name, result.to_json())

    def _start_names(self) -> tuple[str, ...]:
        names = self.config.start_heads
        if names != ("best",):
            return names
        scored = {name: start.accuracy for name, start in self.heads.items() if start.accuracy is not None}
        best = max(scored, key=scored.__getitem__) if scored else next(iter(self.heads))
        self.say(f"start-head: best is {best}")
        return (best,)

    def _start_head(self, name: str) -> SavedHead:
        num_classes, dim = len(self.class_names), self.backbone.feature_dim
        if name == "random":
            return _made(random_head(num_classes, dim, self.config.run.seed, bias=self.config.tuning.tune_bias))
        if name == "label-words":
            return _made(label_word_head(self.config.tuning.words, self.backbone, self.class_names))
        return _made(zero_head(num_classes, dim)) if name == "zero" else self.heads[name]


def label_word_head(words: Sequence[str], backbone: Backbone, class_names: Sequence[str]) -> LinearHead:
    """Return the head that scores each class by the language model's score for the class's word.

    Raises
    ------
    ValueError
        If there is not one word per class, a word is not one token, or the backbone has no language head.
    """
    if len(words) != len(class_names):
        raise ValueError(
            f"label-words must be one word per class, for {', '.join(class_names[:20])}; got {', '.join(words)}"
        )
    if backbone.language_head is None:
        raise ValueError(f"label-words: backbone {backbone.name} has no language head without a text-template")
    weight, bias = backbone.language_head.rows(words)
    return LinearHead(weight, bias, report=SolveReport(regulariser=f"label words {', '.join(words)}"))


def _made(head: LinearHead) -> SavedHead:
    return SavedHead(head, IdentityMap(), None, 0)
