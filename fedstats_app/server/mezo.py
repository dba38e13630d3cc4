"""Training by FedMeZO: the log in the run folder, the server's own replica, and the costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.base.files import append_lines, read_json_lines, to_json
from fedstats_app.fedmezo.log import TrainingFiles, Update
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.fedmezo.setup import MezoSetup, build_model, make_replica
from fedstats_app.grid.evaluation import sum_evaluations
from fedstats_app.grid.mezo_exchange import MezoAnswers
from fedstats_app.report.training_record import TrainingResult
from fedstats_app.server.training import Training
from fedstats_app.strategies.fedmezo import STALLED_ROUNDS, MezoRound, MezoRounds
from fedstats_app.training.model import TrainingRequest, TunedModel
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.wire.mezo import CURVATURE_DIRECTIONS, EVALUATE_MEZO
from fedstats_app.wire.reading import from_values, to_values
from fedstats_app.wire.training import EvaluationCounts

FOLDER = "mezo"
# One line per round: the sizes of its scalars, which limit those of later rounds.
SIZES = "sizes.jsonl"
# A client is noted if its scalars were cut in more than half of its rounds, of which there are at least this many.
ROUNDS_TO_NOTE = 10
# Keys beside the setup in the stored start.
_RATE, _TEMPERATURE = "learning-rate", "temperature-of-start"


class MezoTraining(Training):
    """Training whose rounds send a seed and get scalars; the model is its start and a log."""

    replica: Replica
    start_tensors: dict[str, Tensor]
    strategy: MezoRounds

    def specified(self, request: TrainingRequest) -> TrainingRequest:
        """Return the request without options of SGD, and without the temperature, which divides the start once."""
        return replace(
            request,
            tune="probe" if self.run.config.fedmezo.tune == "head" else "full",
            options=LocalOptions(),
            temperature=1.0,
        )

    def train(self) -> tuple[TrainingResult, TunedModel]:
        """Train, from the last round in the log on if there is one."""
        options, head = self.run.config.fedmezo, self.head.head
        self.setup = MezoSetup(
            self.request,
            tuned=options.tune,
            num_directions=options.num_z,
            distribution=options.directions,
            batch_size=options.batch_size,
        )
        self.repeats = self.size = self.setup.num_directions
        self.files = TrainingFiles(self.run.folder.path / FOLDER / self.name)
        self.strategy = MezoRounds(
            self.setup,
            self.clients,
            learning_rate=None if (rate := self.run.config.local.learning_rate) == "auto" else rate,
            fraction=self.tuning.fraction_tune,
            min_clients=self.min_clients,
            weighting=options.weighting,
            clip=options.clip,
            max_share=self.tuning.max_share,
            training=self.number,
        )
        self._rounds, self._clipped = Counter[int](), Counter[int]()
        bias = torch.nan_to_num(head.bias, neginf=0.0)
        self._take_start({"head.weight": head.weight.float(), "head.bias": bias.float()})
        self.announce(sum(parameter.numel() for parameter in self.replica.parameters.values()))
        if not (self.run.config.run.resume and self._resumed()):
            self._begin()
        left = self.tuning.num_server_rounds - len(self.strategy.log)
        if left > 0:
            for outcome in self.strategy.rounds(self.run.grid, Result(), left):
                self._after_round(outcome)
            if self.strategy.stalled_rounds >= STALLED_ROUNDS:
                self.stopped = "the loss no longer changes along any direction"
        self._synchronise()
        return self.result(), self.model

    # Before the first round and after the last one

    def _take_start(
        self, start: dict[str, Tensor], log: Sequence[Update] = (), sizes: Sequence[Sequence[float]] = ()
    ) -> None:
        """Build the server's replica of a start, and perhaps of the rounds after it."""
        backbone = self.run.backbone
        self.start_tensors = start
        self.model = build_model(self.setup, start, backbone.module, backbone.feature_dim, backbone.device)
        self.replica = make_replica(self.setup, self.model)
        self.strategy.start_from(start, self.replica, log, sizes)

    def _begin(self) -> None:
        """Measure temperature and learning rate if they are "auto", store the start, record it as round 0."""
        loss_answers, answers, passes = None, MezoAnswers(), 0
        temperature = 1.0 if self.made else self.tuning.temperature
        if temperature == "auto":
            temperature, _, loss_answers = self.found_temperature()
            passes = sum(answer.num_examples for answer in loss_answers.by_client.values())
        self.start_temperature = temperature
        if temperature != 1.0:
            self._take_start({key: tensor / temperature for key, tensor in self.start_tensors.items()})
        if self.strategy.learning_rate is None:
            answers = self.strategy.measure_learning_rate(self.run.grid)
            passes += (1 + 2 * CURVATURE_DIRECTIONS) * sum(answer.num_examples for answer in answers.by_client.values())
            self.say(f"learning-rate {self.strategy.learning_rate:.4g}, from the loss's curvature")
        found = {_RATE: self.strategy.learning_rate, _TEMPERATURE: temperature}
        self.files.save_start({**to_values(self.setup), **found}, self.start_tensors)
        if loss_answers is not None:
            answers.add_bytes(loss_answers)
            answers.failures = {**loss_answers.failures, **answers.failures}
        self._record(0, answers, passes)

    def _resumed(self) -> bool:
        """Continue an interrupted training from its log; return whether it had begun."""
        kept = self.files.load_start()
        if kept is None:
            return False
        last = max((entry.round for entry in self.recorded()), default=0)
        updates = self.files.load_log(self.setup.num_directions)[:last]
        self.files.save_log(updates)
        self.take_up(len(updates))
        self.start_temperature = float(kept[0].get(_TEMPERATURE, 1.0))
        path = self.files.folder / SIZES
        # Of a round that was repeated, the last line counts.
        sizes = {line["round"]: line["sizes"] for line in (read_json_lines(path) if path.is_file() else ())}
        self.strategy.learning_rate = float(kept[0][_RATE])
        earlier = [sizes[number] for number in sorted(sizes) if number <= len(updates)]
        self._take_start(kept[1], updates, earlier)
        return True

    def _synchronise(self) -> None:
        """Bring every replica to the end of the log, and note how many are bit-identical."""
        answers = self.strategy.synchronise(self.run.grid)
        confirmed, total = len(answers.by_client), len(self.clients)
        digest = self.replica.digest().hex()
        note = f"{confirmed} of {total} replicas are bit-identical at the end, digest {digest}"
        self.say(note)
        for client, reason in list(answers.failures.items())[:3]:
            self.say(f"{self.run.site(client)} is not among them: {reason}")
        num_bytes = answers.bytes_down + answers.bytes_up + answers.bytes_catch_up
        self.notes.append(f"{note}; this took {num_bytes} bytes, which are not counted in the rounds")
        for client, number in sorted(self._clipped.items()):
            if 2 * number > (rounds := self._rounds[client]) >= ROUNDS_TO_NOTE:
                limit = (
                    f"{self.run.site(client)} had scalars above the limit in {number} of {rounds} rounds (fedmezo.clip)"
                )
                self.notes.append(limit)

    # A round

    def _after_round(self, outcome: MezoRound) -> None:
        """Evaluate, record, write the log."""
        number = outcome.server_round
        for client in outcome.answers.replayed:
            self.say(f"round {number}: the replica of {self.run.site(client)} was missing or differed, and was rebuilt")
        used = sum(min(self.setup.batch_size or n, n) for n in outcome.num_examples.values())
        passes = self.trainer.passes * self.setup.num_directions * used
        self._record(number, outcome.answers, passes, num_clients=len(outcome.num_examples), seconds=outcome.seconds)
        self._rounds.update([*outcome.num_examples])
        self._clipped.update(outcome.clipped)
        if outcome.sizes:
            line = to_json({"round": number, "sizes": outcome.sizes}, indent=None)
            append_lines(self.files.folder / SIZES, line)
        self.files.save_log(self.strategy.log)

    def _record(self, number: int, answers: MezoAnswers, passes: int, **more: Any) -> None:
        if self.on_features:
            # A head needs only the features, which stage 1 has computed, or which are computed now, once.
            passes = sum(self.clients.values()) if self.made and number == 0 else 0
        costs = {name: getattr(answers, name) for name in ("bytes_up", "bytes_down", "bytes_catch_up")}
        self.record(number, answers.failures, forward_passes=passes, **costs, **more)

    def ask_clients(self, number: int) -> tuple[EvaluationCounts, dict[int, str]]:
        """Return the replicas' scores on the clients' hold-out data, and the reason of each client that failed."""
        messages, _ = self.strategy.evaluation_messages(EVALUATE_MEZO)
        return sum_evaluations(self.run.grid, messages, self.clients, self.request.holdout)


def replay(folder: Path, backbone: Backbone) -> Replica:
    """Make the tuned model from a run's start and log: the same bits as every node's.

    Parameters
    ----------
    folder : Path
        ``mezo/NAME`` of a run folder.
    backbone : Backbone
        The run's.

    Raises
    ------
    ValueError
        If the folder holds no start, or one that is damaged or of another backbone.
    """
    files = TrainingFiles(folder)
    kept = files.load_start()
    if kept is None:
        raise ValueError(f"{folder} must hold the start of a training by FedMeZO, and does not")
    setup = from_values(MezoSetup, kept[0])
    if setup.request.backbone_fingerprint not in ("", backbone.fingerprint):
        raise ValueError(
            f"{folder}: the backbone must have fingerprint {setup.request.backbone_fingerprint[:16]}, "
            f"got {backbone.name} with {backbone.fingerprint[:16]}"
        )
    replica = make_replica(setup, build_model(setup, kept[1], backbone.module, backbone.feature_dim, backbone.device))
    replica.apply(files.load_log(setup.num_directions))
    return replica
