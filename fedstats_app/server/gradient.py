"""Training by gradients: Flower's strategies over the clients' SGD, with checkpoints."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result

from fedstats_app.base.checkpoint import latest_checkpoint, save_checkpoint
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.grid.evaluation import evaluate_model_on_clients
from fedstats_app.report.training_record import TrainingResult
from fedstats_app.server.training import Training
from fedstats_app.strategies.fine_tuning import FineTuning, TrainingRound
from fedstats_app.strategies.server_optimizers import load_optimizer_state, make_optimizer, optimizer_state
from fedstats_app.training.model import TunedModel
from fedstats_app.training.start import probe_rate, typical_steps
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.wire.arrays import to_record, to_tensors
from fedstats_app.wire.training import EvaluationCounts

_COSTS = ("bytes_up", "bytes_down")
# A client is noted if an update of it was this many times as long as usual.
TO_NOTE = 4.0


class GradientTraining(Training):
    """The trained parameters go down to the clients and come back in every round."""

    # The clients' least loss with the solved head, if they were asked.
    _start_loss: float | None = None

    def _found_options(self) -> LocalOptions:
        """Find the learning rate of a probe, if it is not given, from the first stage's statistics.

        If they are unknown for these features, it is the fixed one.
        """
        given, step = self.local, self.head.probe_step
        if given.learning_rate != "auto" or step is None:
            return given.with_rate()
        rate = probe_rate(
            step,
            num_steps=typical_steps(self.clients, given.batch_size, given.epochs, self.tuning.max_share),
            made_classes=self.head.head.num_classes if self.made else 0,
            momentum=given.momentum,
            temperature=self.tuning.logit_temperature,
        )
        self.say(f"learning-rate {rate:.4g}, from the class means and the sites' samples")
        return given.with_rate(rate)

    def train(self) -> tuple[TrainingResult, TunedModel]:
        """Train, from the newest checkpoint if there is one."""
        run, num_rounds = self.run, self.tuning.num_server_rounds
        if self.on_features:
            self.request = replace(self.request, options=self._found_options())
        self.learning_rate, self.repeats = self.request.options.learning_rate, self.request.options.epochs
        self._longest: dict[int, float] = defaultdict(float)
        self._checkpoints = run.folder.path / "checkpoints" / self.name
        checkpoint = latest_checkpoint(self._checkpoints) if run.config.run.resume else None
        temperature, answers = 1.0, None
        if checkpoint is not None:
            temperature, self._start_loss = (checkpoint.metadata[key] for key in ("temperature", "start_loss"))
        elif self.on_features and not self.made and self.tuning.temperature == "auto":
            temperature, self._start_loss, answers = self.found_temperature()
        self._build(temperature)
        self.announce(self.size)
        done = 0 if checkpoint is None else checkpoint.round
        if checkpoint is None:
            costs = {} if answers is None else {key: getattr(answers, key) for key in _COSTS}
            self.record(0, {} if answers is None else answers.failures, **costs)
        else:
            self._take(to_record(checkpoint.arrays))
            load_optimizer_state(self._inner, checkpoint.optimizer)
            self.take_up(done)
            # The losses that decide on keeping the start may have been asked before the kill, and are asked again.
            self.rounds[-1] = replace(self.rounds[-1], **checkpoint.metadata["costs"])
            self._strategy.first_round = done + 1
        for outcome in self._strategy.rounds(run.grid, Result(arrays=self._arrays), num_rounds - done):
            self._after_round(outcome)
        self._keep_start_unless_better()
        self.notes += [
            f"{self.run.site(client)}: updates up to {times:.3g} times as long as usual were shortened (training.clip)"
            for client, times in sorted(self._longest.items())
            if times > TO_NOTE
        ]
        return self.result(), self.model

    def _keep_start_unless_better(self) -> None:
        """Return to the start if training gained nothing.

        Accuracy on the clients' hold-out data decides, and the loss if it is equal. With a test set on the server, the
        clients' loss on their training samples decides, at its best temperature, if it is known for the start.
        """
        first, last = self.rounds[0], self.rounds[-1]
        if not last.round:
            return
        if self._test is None and first.round == 0 and first.accuracy is not None and last.accuracy is not None:
            gained = (last.accuracy, -(last.loss or 0.0)) > (first.accuracy, -(first.loss or 0.0))
            change = f"{100 * first.accuracy:.2f}% at the start, {100 * last.accuracy:.2f}% after round {last.round}"
            reason = f"training gained nothing on what sites hold out, which also tells its accuracy: {change}"
        elif (before := self._start_loss) is not None:
            try:
                losses, answers = self.losses_of(self.model.to_head(self.head.head.present))
            except TooFewClients as error:
                self.notes.append(f"the sites' loss after training is unknown: {error}")
                return
            costs = {name: getattr(last, name) + getattr(answers, name) for name in _COSTS}
            self.rounds[-1] = replace(last, **costs)
            self.run.folder.append_round(self.rounds[-1])
            gained = min(losses) < before
            change = f"{before:.4f} at the start, {min(losses):.4f} after round {last.round}"
            self.say(f"the sites' loss on their training samples is {change}")
            reason = f"the sites' loss did not fall: {change}"
        else:
            return
        if not gained:
            self.kept_round = 0
            self._take(self._start_arrays)
            self.notes.append(f"the start was kept, because {reason}")

    def _build(self, temperature: float) -> None:
        """Make the model from the start, whose logits are divided by a temperature first, and the strategy."""
        start, backbone, self.start_temperature = self.head.head, self.run.backbone, temperature
        head = replace(start, weight=start.weight / temperature, bias=start.bias / temperature)
        self.model = TunedModel.of(self.request, head, backbone.module).to(backbone.device)
        trained = self.model.trained_state()
        self.size = sum(tensor.numel() for tensor in trained.values())
        # Parts of the head that clients need and that are not trained.
        self._fixed = {
            name: torch.nan_to_num(tensor.detach().float(), neginf=0.0)
            for name, tensor in {"head.weight": head.weight, "head.bias": head.bias}.items()
            if name not in trained
        }
        self._arrays = self._start_arrays = to_record(trained)
        optimizer = self.run.config.optimizer
        self._inner = make_optimizer(optimizer)
        self._strategy = FineTuning(
            self._inner,
            self.request,
            self.clients,
            fixed=self._fixed,
            fraction=self.tuning.fraction_tune,
            min_clients=self.min_clients,
            clip=optimizer.update_clip,
            max_share=self.tuning.max_share,
        )

    def ask_clients(self, number: int) -> tuple[EvaluationCounts, dict[int, str]]:
        """Evaluate the model of a round on the clients' hold-out data; return counts, and reasons of failures."""
        return evaluate_model_on_clients(self.run.grid, self.request, self.clients, self._arrays, self._fixed, number)

    def _after_round(self, outcome: TrainingRound) -> None:
        """Evaluate, record, write a checkpoint."""
        number, tuning = outcome.server_round, self.tuning
        self._take(outcome.arrays)
        for client, times in outcome.clipped.items():
            self._longest[client] = max(times, self._longest[client])
        self.record(
            number,
            outcome.failures,
            train_loss=outcome.train_loss,
            num_clients=len(outcome.num_examples),
            bytes_up=outcome.bytes_up,
            bytes_down=outcome.bytes_down,
            forward_passes=self._forward_passes(outcome),
            seconds=outcome.seconds,
        )
        if tuning.is_scored(number):
            known = {
                "name": self.name,
                "temperature": self.start_temperature,
                "start_loss": self._start_loss,
                "costs": {name: getattr(self.rounds[-1], name) for name in _COSTS},
            }
            arrays, state = to_tensors(outcome.arrays), optimizer_state(self._inner)
            save_checkpoint(self._checkpoints, number, arrays, state, known)

    def _forward_passes(self, outcome: TrainingRound) -> int:
        """Count the backbone's passes over samples, a backward pass as two, as if no features were cached.

        A probe makes one pass, once, if stage 1 did not.
        """
        if not self.on_features:
            return self.trainer.passes * self.repeats * sum(outcome.num_examples.values())
        if not self.made:
            return 0
        number, strategy = outcome.server_round, self._strategy
        before = {client for earlier in range(1, number) for client in strategy.participants(earlier)}
        return sum(self.clients[client] for client in set(strategy.participants(number)) - before)

    def _take(self, arrays: ArrayRecord) -> None:
        """Continue with the model of a round."""
        self._arrays = arrays
        self.model.load_trained_state(to_tensors(arrays))
