"""One training of stage 2: rounds, evaluation, records, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedstats_app.grid.evaluation import evaluate_model_on_clients
from fedstats_app.outcomes.training_record import RoundRecord, TrainingResult
from fedstats_app.results.compute import forward_passes, training_bytes
from fedstats_app.results.resume import SavedHead
from fedstats_app.server.console import quiet_flower
from fedstats_app.server.journal import TrainingJournal
from fedstats_app.storage.checkpoint import latest_checkpoint, save_checkpoint
from fedstats_app.strategies.fine_tuning import FineTuning, TrainingRound
from fedstats_app.strategies.server_optimizers import load_optimizer_state, make_optimizer, optimizer_state
from fedstats_app.training.model import TunedModel
from fedstats_app.training.options import LocalOptions, running_statistics
from fedstats_app.training.request import TrainingRequest
from fedstats_app.wire.arrays import to_record, to_tensors

if TYPE_CHECKING:
    from fedstats_app.server.fine_tuning import FineTuningStage


class HeadTraining:
    """One training, from one head.

    Parameters
    ----------
    stage : FineTuningStage
        What all trainings of a run share.
    start : str
        Name of the head to start from.
    head : SavedHead
        That head.

    Attributes
    ----------
    journal : TrainingJournal
        Of its rounds.
    model : TunedModel
        After :meth:`run` that of the last round.
    """

    def __init__(self, stage: FineTuningStage, start: str, head: SavedHead) -> None:
        self.stage, self.start, self.head = stage, start, head
        self.config = stage.config
        self.made = start not in stage.heads
        config = self.config
        self.request = TrainingRequest(
            len(stage.class_names),
            config.tuning.fine_tune,  # type: ignore[arg-type]
            LocalOptions(
                epochs=config.local.epochs,
                batch_size=config.local.batch_size,
                learning_rate=config.local.learning_rate,
                momentum=config.local.momentum,
                weight_decay=config.local.weight_decay,
                flip=config.local.flip,
            ),
            temperature=config.tuning.temperature,
            tune_bias=config.tuning.tune_bias,
            batch_norm=running_statistics(config.tuning.batch_norm),
            feature_map=head.feature_map,
            seed=config.run.seed,
            holdout=stage.holdout,
            backbone_fingerprint=stage.backbone.fingerprint,
            class_names=stage.class_names if stage.align_names else (),
        )
        self.model = TunedModel.of(self.request, head.head, stage.backbone.module).to(stage.backbone.device)
        self.journal = TrainingJournal(stage, start, head, on_features=config.tuning.fine_tune == "probe")
        self.inner = make_optimizer(config.optimizer, buffers=self.model.buffer_names)
        self.strategy = FineTuning(
            self.inner,
            self.request,
            stage.clients,
            fixed=self._fixed(),
            fraction=config.tuning.fraction_tune,
            min_clients=config.federation.min_clients,
        )

    def run(self) -> TrainingResult:
        """Train, from the newest checkpoint if there is one; the model is then the last round's."""
        config, stage = self.config, self.stage
        inner, strategy = self.inner, self.strategy
        arrays, done = to_record(self.model.trained_state()), 0
        checkpoint = latest_checkpoint(self._checkpoints) if config.run.resume else None
        if checkpoint is not None:
            arrays, done = to_record(checkpoint.arrays), checkpoint.round
            load_optimizer_state(inner, checkpoint.optimizer)
            self.journal.stopped = str(checkpoint.metadata["stopped"])
            self.journal.take_up(done)
            strategy.first_round = done + 1
            stage.say(f"{self.journal.name}: going on after round {done}")
        else:
            self._record(0, arrays, None)
        finished = {"arrays": arrays}

        def after_round(outcome: TrainingRound) -> bool:
            finished["arrays"] = outcome.arrays
            return self._after_round(outcome)

        strategy.on_round = after_round
        if done < config.tuning.num_server_rounds and not self.journal.stopped:
            with quiet_flower():
                strategy.start(stage.grid, arrays, config.tuning.num_server_rounds - done)
        self._load(finished["arrays"])
        return self._result()

    def _result(self) -> TrainingResult:
        stage, config = self.stage, self.config
        num_examples = sum(stage.clients.values())
        participants = len(self.strategy.participants(1))
        num_rounds = self.journal.rounds[-1].round
        return TrainingResult(
            name=self.journal.name,
            stage=config.tuning.fine_tune,
            start=self.start,
            rounds=self.journal.rounds,
            stopped=self.journal.stopped or "rounds done",
            start_bytes=0 if self.made else self.head.wire_bytes,
            start_forward_passes=0 if self.made else num_examples,
            formula_bytes=training_bytes(
                num_rounds=num_rounds,
                clients_per_round=participants,
                num_parameters=sum(tensor.numel() for tensor in self.model.trained_state().values()),
            ),
            thesis_forward_passes=forward_passes(
                config.tuning.fine_tune,
                num_examples=num_examples * participants // len(stage.clients),
                num_rounds=num_rounds,
                local_epochs=config.local.epochs,
            ),
        )

    def evaluate(self, arrays: ArrayRecord, server_round: int) -> tuple[float | None, float | None]:
        """Return accuracy and mean loss of a round's model, on the server or on the clients."""
        if self.journal.has_test_set:
            self._load(arrays)
            return self.journal.score(self.model)
        if not self.stage.holdout:
            return None, None
        if server_round == 0 and self.start in self.stage.known_scores:
            return self.stage.known_scores[self.start]
        counts, failures = evaluate_model_on_clients(
            self.stage.grid, self.request, self.stage.clients, arrays, self._fixed(), server_round
        )
        for client, reason in list(failures.items())[:3]:
            self.stage.say(f"round {server_round}: client {client} did not evaluate: {reason}")
        if not counts.num_examples:
            return None, None
        return counts.num_correct / counts.num_examples, counts.loss_sum / counts.num_examples

    # What is recorded

    def _after_round(self, outcome: TrainingRound) -> bool:
        """Evaluate, record, write a checkpoint; return whether to stop."""
        config, number = self.config, outcome.server_round
        last = number == config.tuning.num_server_rounds
        due = self.journal.is_due(number)
        self._record(number, outcome.arrays if due else None, outcome)
        stop = due and self.journal.stop_at_plateau()
        if config.tuning.checkpoint_every and (stop or last or number % config.tuning.checkpoint_every == 0):
            save_checkpoint(
                self._checkpoints,
                number,
                to_tensors(outcome.arrays),
                optimizer_state(self.inner),
                {"name": self.journal.name, "stopped": self.journal.stopped},
            )
        return stop

    def _record(self, number: int, arrays: ArrayRecord | None, outcome: TrainingRound | None) -> None:
        accuracy, loss = (None, None) if arrays is None else self.evaluate(arrays, number)
        record = RoundRecord(
            stage=self.config.tuning.fine_tune,
            start=self.start,
            round=number,
            accuracy=accuracy,
            loss=loss,
            train_loss=None if outcome is None else outcome.train_loss,
            num_clients=0 if outcome is None else len(outcome.num_examples),
            num_failed=0 if outcome is None else len(outcome.failures),
            bytes_up=0 if outcome is None else outcome.bytes_up,
            bytes_down=0 if outcome is None else outcome.bytes_down,
            forward_passes=0 if outcome is None else self._forward_passes(outcome),
            seconds=0.0 if outcome is None else outcome.seconds,
        )
        self.journal.add(record, outcome.failures if outcome is not None else {}, "is not in the average")

    def _forward_passes(self, outcome: TrainingRound) -> int:
        """Return the backbone's passes over samples: a probe makes one, once, where stage 1 did not; a backward is two.

        Whatever a cache may have saved besides is luck and does not count.
        """
        if self.config.tuning.fine_tune != "probe":
            return 3 * self.config.local.epochs * sum(outcome.num_examples.values())
        if not self.made:
            return 0
        number = outcome.server_round
        before = {client for earlier in range(1, number) for client in self.strategy.participants(earlier)}
        return sum(self.stage.clients[client] for client in set(self.strategy.participants(number)) - before)

    @property
    def _checkpoints(self) -> Path:
        return self.stage.folder.path / "checkpoints" / self.journal.name

    # The model

    def _fixed(self) -> dict[str, Tensor]:
        """Return what of the head clients need and is not trained."""
        trained = self.model.trained_state()
        whole = {"head.weight": self.head.head.weight, "head.bias": self.head.head.bias}
        return {
            name: torch.nan_to_num(tensor.detach().float(), neginf=0.0)
            for name, tensor in whole.items()
            if name not in trained
        }

    def _load(self, arrays: ArrayRecord) -> None:
        self.model.load_trained_state(to_tensors(arrays))
