"""What every training of stage 2 writes down, whatever trains: scores of its rounds, records, lines on the console."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedstats_app.backbones.samples import samples_for
from fedstats_app.outcomes.training_record import RoundRecord
from fedstats_app.results.resume import SavedHead
from fedstats_app.training.evaluation import evaluate
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, TensorSamples

if TYPE_CHECKING:
    from fedstats_app.server.fine_tuning import FineTuningStage

SECONDS_BETWEEN_LINES = 5.0
# A plateau is left by a better accuracy than this; less is what single test samples do.
MIN_IMPROVEMENT = 1e-4
# Test features are scored in batches of this size; it changes no prediction but by rounding.
FEATURE_BATCH = 1024


class TrainingJournal:
    """The rounds of one training, scored on the server's test set and written into the run folder.

    Parameters
    ----------
    stage : FineTuningStage
        What all trainings of a run share.
    start : str
        Name of the head to start from.
    head : SavedHead
        That head.
    on_features : bool
        Whether only the head is trained: the model then takes mapped features.

    Attributes
    ----------
    name : str
        Such as "fedcof-probe".
    rounds : list of RoundRecord
        So far.
    stopped : str
        Why the training ends early; "" while it does not.
    """

    def __init__(self, stage: FineTuningStage, start: str, head: SavedHead, *, on_features: bool) -> None:
        self._stage, self._start, self._head = stage, start, head
        self._on_features = on_features
        self.name = f"{start}-{stage.config.tuning.fine_tune}"
        self.rounds: list[RoundRecord] = []
        self.stopped = ""
        self._samples = self._test_samples()
        self._last_line = 0.0

    @property
    def has_test_set(self) -> bool:
        """Whether the server can score a model itself."""
        return self._samples is not None

    def score(self, model: TunedModel) -> tuple[float | None, float | None]:
        """Return accuracy and mean loss on the server's test set; None where it has none."""
        if self._samples is None:
            return None, None
        stage = self._stage
        scores = evaluate(
            model,
            self._samples,
            len(stage.class_names),
            batch_size=FEATURE_BATCH if self._on_features else stage.backbone.batch_size,
            present=self._head.head.present if stage.config.run.mask_absent else None,
        )
        return scores.confusion.accuracy, scores.loss

    def take_up(self, last: int) -> None:
        """Take over what the run folder has of this training up to a round."""
        records = self._stage.folder.read_rounds()
        own = [one for one in records if (one.start, one.stage) == (self._start, self._stage.config.tuning.fine_tune)]
        self.rounds = [record for record in own if record.round <= last]

    def is_due(self, number: int) -> bool:
        """Return whether a round is to be evaluated."""
        config = self._stage.config
        return number == config.tuning.num_server_rounds or number % config.tuning.evaluate_every == 0

    def add(self, record: RoundRecord, failures: Mapping[int, str], dropped: str) -> None:
        """Write a round down, and say how it went.

        Parameters
        ----------
        record : RoundRecord
            Of the round.
        failures : mapping
            From client to reason.
        dropped : str
            What became of them, in words.
        """
        self.rounds.append(record)
        self._stage.folder.append_round(record)
        for client, reason in failures.items():
            self._stage.say(f"round {record.round}: client {client} {dropped}: {reason}")
        total, now = self._stage.config.tuning.num_server_rounds, time.perf_counter()
        if record.round not in (0, total) and now - self._last_line < SECONDS_BETWEEN_LINES:
            return
        self._last_line = now
        score = "" if record.accuracy is None else f"{100 * record.accuracy:.2f}%, "
        loss = "" if record.loss is None else f"loss {record.loss:.4f}, "
        megabytes = sum(one.num_bytes for one in self.rounds) / 1e6
        self._stage.say(f"{self.name} round {record.round} of {total}: {score}{loss}{megabytes:,.1f} MB")

    def stop_at_plateau(self) -> bool:
        """Return whether training is to end here, for want of a better accuracy or because it was to before."""
        patience = self._stage.config.tuning.patience
        if plateau(self.rounds, patience):
            self.stopped = f"no better accuracy in {patience} evaluations"
        return bool(self.stopped)

    def _test_samples(self) -> Samples | None:
        test_set = self._stage.test_set
        if test_set is None:
            return None
        if not self._on_features:
            return samples_for(test_set.dataset, np.arange(len(test_set.dataset)), self._stage.backbone)
        features = torch.cat([self._head.feature_map(block).float() for block, _ in test_set.blocks])
        return TensorSamples(features, torch.cat([labels for _, labels in test_set.blocks]))


def plateau(rounds: list[RoundRecord], patience: int) -> bool:
    """Return whether the last ``patience`` evaluations brought no better accuracy than those before them."""
    accuracies = [record.accuracy for record in rounds if record.accuracy is not None]
    if not patience or len(accuracies) <= patience:
        return False
    return max(accuracies[-patience:]) < max(accuracies[:-patience]) + MIN_IMPROVEMENT
