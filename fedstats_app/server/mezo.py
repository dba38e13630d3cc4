"""One training of stage 2 by FedMeZO: the log in the run folder, the server's own replica, what it all cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedstats_app.config import AppConfig
from fedstats_app.grid.evaluation import sum_evaluations
from fedstats_app.grid.mezo_exchange import SEED_STREAM, Asked
from fedstats_app.outcomes.training_record import RoundRecord, TrainingResult
from fedstats_app.results.compute import mezo_bytes
from fedstats_app.results.resume import SavedHead
from fedstats_app.server.console import quiet_flower
from fedstats_app.server.journal import TrainingJournal
from fedstats_app.strategies.fedmezo import STALLED_ROUNDS, FedMeZO, MezoRound
from fedstats_app.training.lora import merge_lora
from fedstats_app.training.model import TunedModel
from fedstats_app.training.request import TrainingRequest
from fedstats_app.training.zeroth_order.average import UpdateLog
from fedstats_app.training.zeroth_order.log import SEED_LIMIT, TrainingFiles
from fedstats_app.training.zeroth_order.model import build_model, make_replica
from fedstats_app.training.zeroth_order.replica import Replica, SeedPool
from fedstats_app.training.zeroth_order.setup import MezoSetup
from fedstats_app.wire.mezo import CURVATURE_DIRECTIONS, EVALUATE_MEZO
from fedstats_app.wire.reading import to_values

if TYPE_CHECKING:
    from fedstats_app.server.fine_tuning import FineTuningStage

FOLDER = "mezo"
# In which rounds the learning rate was changed, and to what.
RATES = "rates.json"
# Beside the setup, in what the training starts from.
_RATE = "learning-rate"


class MezoTraining:
    """One training, from one head.

    Parameters
    ----------
    stage : FineTuningStage
        What all trainings of a run share.
    start : str
        Name of the head to start from.
    head : SavedHead
        That head.
    number : int
        Of the training in the run.

    Attributes
    ----------
    journal : TrainingJournal
        Of its rounds.
    model : TunedModel
        After :meth:`run` the tuned model, in float32 and without adapters.
    """

    model: TunedModel
    replica: Replica
    start_tensors: dict[str, Tensor]

    def __init__(self, stage: FineTuningStage, start: str, head: SavedHead, number: int) -> None:
        self.stage, self.start, self.head, self.number = stage, start, head, number
        config = self.config = stage.config
        self.made = start not in stage.heads
        self.on_features = config.fedmezo.tune == "head"
        self.journal = TrainingJournal(stage, start, head, on_features=self.on_features)
        self.setup = _setup(config, stage, head, number)
        self.files = TrainingFiles(stage.folder.path / FOLDER / self.journal.name)
        self.notes: list[str] = []
        dtype = torch.float64 if config.fedmezo.dtype == "float64" else torch.float32
        start_of = {"head.weight": head.head.weight, "head.bias": torch.nan_to_num(head.head.bias, neginf=0.0)}
        self._take_start({key: tensor.to(dtype) for key, tensor in start_of.items()})

    def run(self) -> TrainingResult:
        """Train, going on after the last round in the log if there is one; :attr:`model` is then the tuned one."""
        stage, journal = self.stage, self.journal
        with quiet_flower():
            strategy = (self._resumed() if self.config.run.resume else None) or self._begun()
            strategy.on_round = lambda outcome: self._after_round(outcome, strategy)
            left = self.config.tuning.num_server_rounds - len(strategy.log)
            if left > 0 and not journal.stop_at_plateau():
                strategy.start(stage.grid, num_rounds=left)
                if strategy.stalled_rounds >= STALLED_ROUNDS:
                    journal.stopped = "the loss no longer changes along any direction"
            self._synchronise(strategy)
        self.model = self.model.float()
        if self.model.backbone is not None:
            merge_lora(self.model.backbone)
        return self._result()

    # Before the first round and after the last one

    def _take_start(self, start: dict[str, Tensor]) -> None:
        """Build the server's replica of a start."""
        self.start_tensors = start
        backbone = self.stage.backbone
        self.model = build_model(self.setup, start, backbone.module, backbone.feature_dim, backbone.device)
        self.replica = make_replica(self.setup, self.model)

    def _strategy(
        self, log: UpdateLog | None = None, rate: float | None = None, rates: Mapping[int, float] | None = None
    ) -> FedMeZO:
        config = self.config
        given = None if config.fedmezo.learning_rate == "auto" else config.fedmezo.learning_rate
        return FedMeZO(
            self.setup,
            self.start_tensors,
            self.stage.clients,
            learning_rate=given if rate is None else rate,
            replica=self.replica,
            log=log,
            rates=rates,
            fraction=config.tuning.fraction_tune,
            min_clients=config.federation.min_clients,
            weighting=config.fedmezo.weighting,
            clip=config.fedmezo.clip,
            training=self.number,
        )

    def _begun(self) -> FedMeZO:
        """Find temperature and learning rate if they are to be found, keep the start, record it as round 0."""
        stage, name, asked = self.stage, self.journal.name, []
        strategy = self._strategy()
        temperature = 1.0 if self.made else self.config.fedmezo.temperature
        if temperature == "auto":
            temperature, answers = strategy.measure_temperature(stage.grid)
            asked.append((1, answers))
            stage.say(f"{name}: the head's logits are divided by {temperature:.4g}, where the clients' loss is least")
        if temperature != 1.0:
            self._take_start({key: tensor / temperature for key, tensor in self.start_tensors.items()})
            strategy = self._strategy()
        if strategy.learning_rate is None:
            asked.append((1 + 2 * CURVATURE_DIRECTIONS, strategy.measure_learning_rate(stage.grid)))
            stage.say(f"{name}: fedmezo-learning-rate {strategy.learning_rate:.4g}, from the loss's curvature")
        self.files.save_start({**to_values(self.setup), _RATE: strategy.learning_rate}, self.start_tensors)
        passes = sum(times * sum(one.num_examples for one in answers.of.values()) for times, answers in asked)
        self._record(0, _together([answers for _, answers in asked]), strategy, passes=passes)
        return strategy

    def _resumed(self) -> FedMeZO | None:
        """Return the training that was interrupted as its log has it, None where it had not begun."""
        kept = self.files.load_start()
        if kept is None:
            return None
        last = max((one.round for one in self._recorded()), default=0)
        updates = self.files.load_log(self.setup.num_directions)[:last]
        self.files.replace_log(updates)
        self.journal.take_up(len(updates))
        self._take_start(kept[1])
        self.stage.say(f"{self.journal.name}: going on after round {len(updates)}")
        path = self.files.folder / RATES
        kept_rates = json.loads(path.read_text()) if path.is_file() else {}
        rates = {int(number): float(rate) for number, rate in kept_rates.items() if int(number) <= len(updates)}
        return self._strategy(UpdateLog(self.setup.num_directions, updates), float(kept[0][_RATE]), rates)

    def _recorded(self) -> list[RoundRecord]:
        rounds = self.stage.folder.read_rounds()
        return [one for one in rounds if (one.start, one.stage) == (self.start, self.config.tuning.fine_tune)]

    def _synchronise(self, strategy: FedMeZO) -> None:
        """Bring every replica to the end, and say how many are there."""
        asked = strategy.synchronise(self.stage.grid)
        confirmed, total = len(asked.of), len(self.stage.clients)
        digest = self.replica.digest().hex()
        note = f"{confirmed} of {total} replicas are bit-identical in the end, digest {digest}"
        self.stage.say(f"{self.journal.name}: {note}")
        for client, reason in list(asked.failures.items())[:3]:
            self.stage.say(f"{self.journal.name}: client {client} is not among them: {reason}")
        num_bytes = asked.bytes_down + asked.bytes_up + asked.bytes_catch_up
        self.notes.append(f"{note}; telling them took {num_bytes} bytes, which are not in the rounds")

    # A round

    def _after_round(self, outcome: MezoRound, strategy: FedMeZO) -> bool:
        """Evaluate, record, write the log; return whether to stop."""
        number = outcome.server_round
        for client, reason in outcome.asked.replayed.items():
            self.stage.say(f"round {number}: client {client} was brought up to date by the log: {reason}")
        for client in outcome.clipped:
            self.stage.say(f"round {number}: scalars of client {client} were cut (fedmezo-clip)")
        if number in strategy.rates:
            self.files.write(RATES, json.dumps(dict(strategy.rates)).encode())
            rate = strategy.rates[number]
            self.stage.say(f"round {number}: the slope has suddenly grown; the learning rate is now {rate:.4g}")
        self._record(
            number,
            outcome.asked,
            strategy,
            passes=2 * self.setup.num_directions * sum(self._samples_used(n) for n in outcome.num_examples.values()),
            num_clients=len(outcome.num_examples),
            seconds=outcome.seconds,
        )
        self.files.extend_log([outcome.update], number)
        return self.journal.is_due(number) and self.journal.stop_at_plateau()

    def _samples_used(self, num_examples: int) -> int:
        return min(self.setup.batch_size or num_examples, num_examples)

    def _record(
        self, number: int, asked: Asked, strategy: FedMeZO, *, passes: int, num_clients: int = 0, seconds: float = 0.0
    ) -> None:
        due = number == 0 or self.journal.is_due(number)
        accuracy, loss = self._score(number, strategy) if due else (None, None)
        record = RoundRecord(
            stage=self.config.tuning.fine_tune,
            start=self.start,
            round=number,
            accuracy=accuracy,
            loss=loss,
            num_clients=num_clients,
            num_failed=len(asked.failures),
            bytes_up=asked.bytes_up,
            bytes_down=asked.bytes_down,
            # The head alone takes the features that stage 1 has computed, or that are computed now, once.
            forward_passes=passes if not self.on_features else self._feature_passes(number),
            seconds=seconds,
            bytes_catch_up=asked.bytes_catch_up,
        )
        self.journal.add(record, asked.failures, "is not in the average")

    def _feature_passes(self, number: int) -> int:
        return sum(self.stage.clients.values()) if self.made and number == 0 else 0

    def _score(self, number: int, strategy: FedMeZO) -> tuple[float | None, float | None]:
        """Return accuracy and mean loss of the replica, on the server or on the clients."""
        if self.journal.has_test_set or not self.stage.holdout:
            return self.journal.score(self.model)
        messages, _ = strategy.evaluation_messages(EVALUATE_MEZO)
        counts, failures = sum_evaluations(self.stage.grid, messages)
        for client, reason in list(failures.items())[:3]:
            self.stage.say(f"round {number}: client {client} did not evaluate: {reason}")
        if not counts.num_examples:
            return None, None
        return counts.num_correct / counts.num_examples, counts.loss_sum / counts.num_examples

    def _result(self) -> TrainingResult:
        stage, config, rounds = self.stage, self.config, self.journal.rounds
        num_examples, clients = sum(stage.clients.values()), len(stage.clients)
        participants = max(1, round(config.tuning.fraction_tune * clients))
        num_rounds, directions = rounds[-1].round, self.setup.num_directions
        return TrainingResult(
            name=self.journal.name,
            stage=config.tuning.fine_tune,
            start=self.start,
            rounds=rounds,
            stopped=self.journal.stopped or "rounds done",
            start_bytes=0 if self.made else self.head.wire_bytes,
            start_forward_passes=0 if self.made else num_examples,
            formula_bytes=mezo_bytes(num_rounds=num_rounds, clients_per_round=participants, num_directions=directions),
            thesis_forward_passes=2 * directions * num_rounds * (num_examples * participants // clients),
            notes=self.notes,
        )


def _together(asked: list[Asked]) -> Asked:
    """Return several questions as one, with all their bytes and failures."""
    total = Asked()
    for one in asked:
        total.add_bytes(one)
        total.bytes_catch_up += one.bytes_catch_up
        total.failures.update(one.failures)
    return total


def _setup(config: AppConfig, stage: FineTuningStage, head: SavedHead, number: int) -> MezoSetup:
    pool = None
    if config.fedmezo.pool:
        draw = np.random.default_rng([config.run.seed, SEED_STREAM, number])
        pool = SeedPool(int(draw.integers(SEED_LIMIT - config.fedmezo.pool)), config.fedmezo.pool)
    request = TrainingRequest(
        len(stage.class_names),
        "probe" if config.fedmezo.tune == "head" else "full",
        temperature=config.tuning.temperature,
        tune_bias=config.tuning.tune_bias,
        feature_map=head.feature_map,
        seed=config.run.seed,
        holdout=stage.holdout,
        backbone_fingerprint=stage.backbone.fingerprint,
        class_names=stage.class_names if stage.align_names else (),
    )
    return MezoSetup(
        request,
        tuned=config.fedmezo.tune,
        epsilon=config.fedmezo.probe_distance,
        num_directions=config.fedmezo.num_z,
        distribution=config.fedmezo.directions,
        dtype=config.fedmezo.dtype,
        batch_size=config.fedmezo.batch_size,
        lora_rank=config.fedmezo.lora_rank,
        lora_alpha=config.fedmezo.lora_alpha,
        pool=pool,
    )
