"""Common part of all trainings on the server: scores, records of rounds, lines on the console."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from fedstats_app.grid.asking import Answers
from fedstats_app.grid.evaluation import evaluate_on_clients, training_losses
from fedstats_app.heads import Calibration, HeadScores, LinearHead
from fedstats_app.heads.calibration import cross_fitted
from fedstats_app.report.method_result import client_spread, quality
from fedstats_app.report.state import SolvedHead
from fedstats_app.report.training_record import (
    RoundRecord,
    TrainingResult,
    decline,
    forward_passes,
    mezo_bytes,
    read_rounds,
    training_bytes,
)
from fedstats_app.server.run import Run
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.statistics.specification import SampleRequest
from fedstats_app.training.evaluation import evaluate, score_head
from fedstats_app.training.model import TrainingRequest, Tune, TunedModel
from fedstats_app.training.start import best_temperature
from fedstats_app.training.trainers import Trainer
from fedstats_app.training.training_options import MADE_HEADS, LocalOptions
from fedstats_app.wire import StatisticsRequest
from fedstats_app.wire.training import EvaluationCounts, TrainingLosses

# Test features are scored in batches of this size; it changes no prediction but by rounding.
FEATURE_BATCH = 1024


class Training(ABC):
    """One training, from one head.

    Parameters
    ----------
    run : Run
    trainer : Trainer
    clients : mapping
        From those that can train to their number of samples.
    start : str
        Name of the head to start from, ``head``.
    number : int
        Of the training in the run.

    Attributes
    ----------
    name : str
        Of the training and of its head, such as "fedcof-probe".
    made : bool
        True if the start was made rather than solved, so that it cost no statistics and no features.
    request : TrainingRequest
        Sent to the clients.
    on_features : bool
        True if only the head is trained: the model then takes features.
    model : TunedModel
        The model that is scored.
    repeats : int
        Local epochs, or directions, of a round.
    size : int
        Numbers that the papers' formula of bytes counts: trained parameters, or directions.
    stopped : str
        Reason for the end: "rounds done", or an earlier one.
    notes : list of str
        For the result.
    learning_rate : float or None
        Of the clients' SGD; None without SGD.
    start_temperature : float
        Divisor of the logits of the start.
    kept_round : int or None
        The round whose model is kept, if another than the last.
    """

    model: TunedModel
    repeats: int
    size: int
    learning_rate: float | None = None
    start_temperature: float = 1.0
    kept_round: int | None = None

    def __init__(
        self, run: Run, trainer: Trainer, clients: Mapping[int, int], start: str, head: SolvedHead, number: int
    ) -> None:
        self.run, self.trainer, self.clients = run, trainer, clients
        self.start, self.head, self.number = start, head, number
        self.tuning, self.min_clients = run.config.tuning, run.config.federation.min_clients
        self.name, self.made = f"{start}-{trainer.name}", start in MADE_HEADS
        self.local = run.config.local
        self.request = self.specified(run.training_request())
        self.on_features = self.request.tune == "probe"
        self.rounds: list[RoundRecord] = []
        self.notes: list[str] = []
        self.stopped = "rounds done"
        # A head takes features that are there already, a network images.
        test_set = run.test_set
        self._test = None if test_set is None else test_set.samples(features=self.on_features)
        self._batch_size = FEATURE_BATCH if self.on_features else run.backbone.batch_size

    def specified(self, request: TrainingRequest) -> TrainingRequest:
        """Add to the common request which parameters are trained and with which options."""
        tune: Tune = self.trainer.name  # type: ignore[assignment]  # a trainer by gradient is called so
        return replace(request, tune=tune, options=self.local.with_rate(self.trainer.rate))

    @abstractmethod
    def train(self) -> tuple[TrainingResult, TunedModel]:
        """Train, continuing after the last round in the run folder if there is one; return the result and the model."""

    @abstractmethod
    def ask_clients(self, number: int) -> tuple[EvaluationCounts, dict[int, str]]:
        """Return the counts of a round's model on the clients' hold-out samples, and reasons of failed clients."""

    def losses_of(self, head: LinearHead) -> tuple[list[float], Answers[TrainingLosses]]:
        """Return the clients' mean loss on their training samples, by temperature, and the answers with their bytes.

        Raises
        ------
        TooFewClients
            If too few clients answer.
        """
        # The whole head goes down.
        request = replace(self.request, tune="probe", tune_bias=True, options=LocalOptions())
        return training_losses(self.run.grid, request, head, self.clients, self.min_clients, self.tuning.max_share)

    def found_temperature(self) -> tuple[float, float, Answers[TrainingLosses]]:
        """Return the temperature at which the clients' loss with the start is least, that loss, and the answers."""
        losses, answers = self.losses_of(self.head.head)
        temperature = best_temperature(losses)
        self.say(f"the head's logits are divided by {temperature:.4g}, where the sites' loss is least")
        return temperature, min(losses), answers

    def say(self, line: str) -> None:
        """Print a line about this training."""
        self.run.progress.say(f"{self.name}: {line}")

    def announce(self, num_parameters: int) -> None:
        """Print the number of trained parameters, rounds, clients and samples."""
        clients = f"{len(self.clients)} sites with {sum(self.clients.values()):,} samples"
        rounds = f"{self.tuning.num_server_rounds:,} rounds"
        self.say(f"{num_parameters:,} parameters are trained in {rounds} over {clients}")

    def score(self, number: int) -> tuple[float | None, float | None]:
        """Measure accuracy and mean loss after a round, on the server's test set or the clients' hold-out samples."""
        if self._test is None:
            return self._score_held_out(number)
        with self.run.progress.doing("evaluating on the test samples"):
            scores = evaluate(self.model, self._test, batch_size=self._batch_size, present=self.head.head.present)
        return scores.confusion.accuracy, scores.loss

    def _score_held_out(self, number: int) -> tuple[float | None, float | None]:
        if not self.request.holdout:
            return None, None
        counts, failures = self.ask_clients(number)
        for client, reason in list(failures.items())[:3]:
            self.run.progress.say(f"round {number}: {self.run.site(client)} did not evaluate: {reason}")
        if not counts.num_examples:
            return None, None
        return counts.num_correct / counts.num_examples, counts.loss_sum / counts.num_examples

    def recorded(self) -> list[RoundRecord]:
        """Read the rounds of this training from the run folder."""
        own = (self.start, self.trainer.name)
        return [
            record
            for record in read_rounds(self.run.folder.path / "rounds.jsonl")
            if (record.start, record.stage) == own
        ]

    def take_up(self, last: int) -> None:
        """Continue after a round in the run folder."""
        self.rounds = [record for record in self.recorded() if record.round <= last]
        self.say(f"continuing after round {last}")

    def record(self, number: int, failures: Mapping[int, str], **costs: Any) -> None:
        """Score :attr:`model` if the round is due, write the round to the run folder and print it.

        ``failures`` has the reasons of all clients that are not in the average; ``costs`` as in :class:`RoundRecord`.
        """
        progress = self.run.progress
        accuracy, loss = self.score(number) if self.tuning.is_scored(number) else (None, None)
        of_round = (self.trainer.name, self.start, number, accuracy, loss)
        record = RoundRecord(*of_round, num_failed=len(failures), **costs)
        self.rounds.append(record)
        self.run.folder.append_round(record)
        for client, reason in failures.items():
            progress.say(f"round {number}: {self.run.site(client)} is not in the average: {reason}")
        total = self.tuning.num_server_rounds
        measures = "" if accuracy is None else f"{100 * accuracy:.2f}%, "
        measures += "" if loss is None else f"loss {loss:.4f}, "
        megabytes = sum(record.num_bytes for record in self.rounds) / 1e6
        line = f"{self.name} round {number} of {total}: {measures}{megabytes:,.1f} MB"
        progress.now_and_then(line, in_any_case=number in (0, total))

    def result(self) -> TrainingResult:
        """Return the result of the training, with its costs as measured and by formula."""
        trainer, num_examples, num_clients = self.trainer, sum(self.clients.values()), len(self.clients)
        participants = max(1, round(self.tuning.fraction_tune * num_clients))
        num_rounds = self.rounds[-1].round
        scores, by_client, fitted = self._score_head()
        result = TrainingResult(
            name=self.name,
            stage=trainer.name,
            start=self.start,
            rounds=self.rounds,
            stopped=self.stopped,
            start_bytes=0 if self.made else self.head.wire_bytes,
            start_forward_passes=0 if self.made else num_examples,
            formula_bytes=(training_bytes if trainer.by_gradient else mezo_bytes)(num_rounds, participants, self.size),
            thesis_forward_passes=forward_passes(
                trainer.passes,
                num_examples=num_examples * participants // num_clients,
                num_rounds=num_rounds,
                repeats=self.repeats,
            ),
            notes=self.notes,
            display_name=trainer.display_name,
            learning_rate=self.learning_rate,
            start_temperature=self.start_temperature,
            kept_round=self.kept_round,
            quality=quality(scores),
            calibration=fitted,
            client_accuracy=client_spread(by_client),
        )
        worse = decline(result)
        return replace(result, notes=[*result.notes, worse]) if worse else result

    def _score_head(self) -> tuple[HeadScores | None, Mapping[int, float], Calibration | None]:
        """Return the scores of the final head, its accuracy by client, and its calibration, as far as they are known.

        Clients score heads as in the first stage. For a tuned network they return only accuracy and loss.
        """
        request, run = self.request, self.run
        head = self.model.to_head(self.head.head.present)
        if self._test is not None:
            scores = score_head(self.model, head, self._test, batch_size=self._batch_size)
            return scores, {}, cross_fitted((scores.even, scores.odd))
        if not request.holdout or not self.on_features:
            return None, {}, None
        same: dict[str, Any] = {field.name: getattr(request, field.name) for field in fields(SampleRequest)}
        statistics_request = StatisticsRequest(**same, spec=StatisticsSpec())
        own = (statistics_request, {self.name: head}, self.clients)
        found = evaluate_on_clients(run.grid, *own, max_share=self.tuning.max_share)
        for client, reason in list(found.failures.items())[:3]:
            self.say(f"{run.site(client)} did not evaluate the head: {reason}")
        return found.heads[self.name], found.accuracies[self.name], found.calibrations[self.name]
