"""What every training does on the server, whoever trains: scores, records of its rounds, lines on the console."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedstats_app.grid.asking import Answers
from fedstats_app.grid.evaluation import evaluate_on_clients, training_losses
from fedstats_app.heads import Calibration, HeadScores, LinearHead
from fedstats_app.report.method_result import QUALITY, client_spread, quality
from fedstats_app.report.training_record import (
    RoundRecord,
    TrainingResult,
    decline,
    forward_passes,
    mezo_bytes,
    training_bytes,
)
from fedstats_app.server.training.session import Session
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.training.evaluation import evaluate, head_logits, score_head
from fedstats_app.training.model import TunedModel
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.wire import StatisticsRequest
from fedstats_app.wire.training import EvaluationCounts, TrainingLosses

# A plateau is left by a better accuracy than this; less is what single test samples do.
MIN_IMPROVEMENT = 1e-4
# Test features are scored in batches of this size; it changes no prediction but by rounding.
FEATURE_BATCH = 1024


class Training(ABC):
    """One training, from one head.

    Parameters
    ----------
    session : Session
        What it is given.

    Attributes
    ----------
    request : TrainingRequest
        What clients are told.
    on_features : bool
        Whether only the head is trained: the model then takes mapped features.
    model : TunedModel
        As it is scored.
    repeats : int
        Local epochs, or directions, of a round.
    size : int
        Numbers that the papers' formula of bytes counts: trained parameters, or directions.
    rounds : list of RoundRecord
        So far.
    stopped : str
        Why the training ends early; "" while it does not.
    notes : list of str
        For the result.
    learning_rate : float or None
        Of the clients' SGD; None where it is another one's.
    start_temperature : float
        By which the logits of the start were divided.
    kept_round : int or None
        The round whose model is kept, if another than the last.
    """

    model: TunedModel
    repeats: int
    size: int
    learning_rate: float | None = None
    start_temperature: float = 1.0
    kept_round: int | None = None

    def __init__(self, session: Session) -> None:
        self.session, self.request = session, session.trainer.request(session.request)
        self.on_features = self.request.tune == "probe"
        self.rounds: list[RoundRecord] = []
        self.notes: list[str] = []
        self.stopped = ""
        self._left_out: dict[int, list[float]] = {}
        self._test = None if session.test_samples is None else session.test_samples(self.on_features)

    @abstractmethod
    def run(self) -> tuple[TrainingResult, TunedModel]:
        """Train, going on after the last round that the run folder has, if any; return what came of it."""

    @abstractmethod
    def ask_clients(self, number: int) -> tuple[EvaluationCounts, dict[int, str]]:
        """Return how the model of a round does on what clients hold out, and why some did not say."""

    def losses_of(self, head: LinearHead) -> tuple[list[float], Answers[TrainingLosses]]:
        """Return the clients' mean loss on their training samples, by temperature, and what asking cost.

        Raises
        ------
        TooFewClients
            If too few clients answer.
        """
        session = self.session
        request = replace(session.request, tune="probe", options=LocalOptions())
        return training_losses(session.grid, request, head, session.clients, session.min_clients)

    def announce(self, num_parameters: int) -> None:
        """Say what is trained, for how long and on what."""
        session = self.session
        clients = f"{len(session.clients)} clients with {sum(session.clients.values()):,} samples"
        rounds = f"{session.tuning.num_server_rounds:,} rounds"
        session.progress.say(f"{session.name}: {num_parameters:,} parameters are trained in {rounds} over {clients}")

    def score(self, number: int) -> tuple[float | None, float | None]:
        """Return accuracy and mean loss after a round, of the server's test set or of what clients hold out."""
        session = self.session
        if self._test is not None:
            with session.progress.doing("evaluating on the test samples"):
                scores = evaluate(
                    self.model,
                    self._test,
                    self.request.num_classes,
                    batch_size=FEATURE_BATCH if self.on_features else session.backbone.batch_size,
                    present=session.head.head.present if session.mask_absent else None,
                )
            return scores.confusion.accuracy, scores.loss
        return self._score_held_out(number)

    def _score_held_out(self, number: int) -> tuple[float | None, float | None]:
        session = self.session
        if not self.request.holdout:
            return None, None
        counts, failures = self.ask_clients(number)
        for client, reason in list(failures.items())[:3]:
            session.progress.say(f"round {number}: client {client} did not evaluate: {reason}")
        if not counts.num_examples:
            return None, None
        return counts.num_correct / counts.num_examples, counts.loss_sum / counts.num_examples

    def recorded(self) -> list[RoundRecord]:
        """Return what the run folder has of this training."""
        own = (self.session.start, self.session.trainer.name)
        return [one for one in self.session.folder.read_rounds() if (one.start, one.stage) == own]

    def take_up(self, last: int) -> None:
        """Go on after a round that the run folder has."""
        self.rounds = [one for one in self.recorded() if one.round <= last]
        self.session.progress.say(f"{self.session.name}: going on after round {last}")

    def is_due(self, number: int) -> bool:
        """Return whether a round is to be evaluated."""
        tuning = self.session.tuning
        return number in (0, tuning.num_server_rounds) or number % tuning.evaluate_every == 0

    def record(self, number: int, failures: Mapping[int, str], **costs: Any) -> None:
        """Score a round where that is due, write it down, and say how it went.

        Parameters
        ----------
        number : int
            Of the round, whose model is :attr:`model`.
        failures : mapping
            From every client that is not in the average to the reason.
        **costs
            As :class:`RoundRecord`.
        """
        session = self.session
        accuracy, loss = self.score(number) if self.is_due(number) else (None, None)
        held_out = None
        if session.tuning.keep == "best" and self.is_due(number):
            # What tells how good a model is must not choose it too, if the server has other samples for that.
            held_out = accuracy if self._test is None else self._score_held_out(number)[0]
        record = RoundRecord(
            *(session.trainer.name, session.start, number, accuracy, loss),
            num_failed=len(failures),
            held_out_accuracy=held_out,
            **costs,
        )
        self.rounds.append(record)
        session.folder.append_round(record)
        for client, reason in failures.items():
            session.progress.say(f"round {number}: client {client} is not in the average: {reason}")
        total = session.tuning.num_server_rounds
        told = "" if accuracy is None else f"{100 * accuracy:.2f}%, "
        told += "" if loss is None else f"loss {loss:.4f}, "
        megabytes = sum(one.num_bytes for one in self.rounds) / 1e6
        line = f"{session.name} round {number} of {total}: {told}{megabytes:,.1f} MB"
        session.progress.now_and_then(line, in_any_case=number in (0, total))

    def name_left_out(self, left_out: Mapping[int, float]) -> None:
        """Note the clients that are out of proportion in a round, by how many times the usual size."""
        for client, times in left_out.items():
            self._left_out.setdefault(client, []).append(times)

    def stop_at_plateau(self) -> bool:
        """Return whether training is to end here, for want of a better accuracy or because it was to before."""
        patience = self.session.tuning.patience
        if plateau(self.rounds, patience):
            self.stopped = f"no better accuracy in {patience} evaluations"
        return bool(self.stopped)

    def result(self) -> TrainingResult:
        """Return what the training did and cost, by its rounds and by formula."""
        session, trainer = self.session, self.session.trainer
        num_examples, num_clients = sum(session.clients.values()), len(session.clients)
        participants = max(1, round(session.tuning.fraction_tune * num_clients))
        num_rounds = self.rounds[-1].round
        scores, by_client = self._score_head()
        result = TrainingResult(
            name=session.name,
            stage=trainer.name,
            start=session.start,
            rounds=self.rounds,
            stopped=self.stopped or "rounds done",
            start_bytes=0 if session.made else session.head.wire_bytes,
            start_forward_passes=0 if session.made else num_examples,
            formula_bytes=(training_bytes if trainer.by_gradient else mezo_bytes)(num_rounds, participants, self.size),
            thesis_forward_passes=forward_passes(
                trainer.passes,
                num_examples=num_examples * participants // num_clients,
                num_rounds=num_rounds,
                repeats=self.repeats,
            ),
            notes=[*self.notes, *self._notes_on_left_out()],
            display_name=trainer.display_name,
            sent=trainer.sent,
            learning_rate=self.learning_rate,
            start_temperature=self.start_temperature,
            kept_round=self.kept_round,
            quality={key: value for key, value in quality(scores).items() if key in QUALITY},
            calibration=None if scores is None else self._calibrated(scores),
            client_accuracy=client_spread(by_client),
        )
        worse = decline(result)
        return replace(result, notes=[*result.notes, worse]) if worse else result

    def _score_head(self) -> tuple[HeadScores | None, Mapping[int, float]]:
        """Return all that can be said of the head in the end, and its accuracy by client where they say so.

        Clients are asked as in the first stage. They cannot score a network that was tuned so: of that they tell its
        accuracy and loss alone.
        """
        session, request = self.session, self.request
        head = self.model.to_head(session.head.head.present)
        if self._test is not None:
            size = FEATURE_BATCH if self.on_features else session.backbone.batch_size
            masked = session.mask_absent
            return score_head(self.model, head, self._test, batch_size=size, mask_absent=masked), {}
        if not request.holdout or not self.on_features:
            return None, {}
        asked = StatisticsRequest(
            request.num_classes,
            specs=(StatisticsSpec(gram=False, feature_map=request.feature_map),),
            seed=request.seed,
            holdout=request.holdout,
            backbone_fingerprint=request.backbone_fingerprint,
            class_names=request.class_names,
        )
        found = evaluate_on_clients(session.grid, asked, {session.name: (0, head)}, session.clients)
        for client, reason in list(found.failures.items())[:3]:
            session.progress.say(f"{session.name}: client {client} did not evaluate the head: {reason}")
        return found.heads[session.name], found.accuracies[session.name]

    def _calibrated(self, scores: HeadScores) -> Calibration | None:
        """Return the head's temperature; only where features are at hand are the errors after it counted again."""
        fitted = scores.calibration.fit()
        if fitted is None or self._test is None or not self.on_features:
            return fitted
        head = self.model.to_head(self.session.head.head.present)
        return fitted.counted(head_logits(self.model, head, self._test, batch_size=FEATURE_BATCH))

    def _notes_on_left_out(self) -> list[str]:
        return [
            f"client {client} was left out of {len(times)} round(s): "
            f"what it sent was up to {max(times):.3g} times as large as is usual"
            for client, times in sorted(self._left_out.items())
        ]


def plateau(rounds: list[RoundRecord], patience: int) -> bool:
    """Return whether the last ``patience`` evaluations brought no better accuracy than those before them."""
    told = (one.accuracy if one.held_out_accuracy is None else one.held_out_accuracy for one in rounds)
    accuracies = [accuracy for accuracy in told if accuracy is not None]
    if not patience or len(accuracies) <= patience:
        return False
    return max(accuracies[-patience:]) < max(accuracies[:-patience]) + MIN_IMPROVEMENT
