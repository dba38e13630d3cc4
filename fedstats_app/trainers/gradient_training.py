"""Training by gradients: Flower's strategies over the clients' SGD, with checkpoints."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord

from fedstats_app.grid.evaluation import evaluate_model_on_clients
from fedstats_app.outcomes.training_record import TrainingResult
from fedstats_app.storage.checkpoint import latest_checkpoint, save_checkpoint
from fedstats_app.strategies.fine_tuning import FineTuning, TrainingRound
from fedstats_app.strategies.server_optimizers import load_optimizer_state, make_optimizer, optimizer_state
from fedstats_app.strategies.update_limits import UpdateLimits
from fedstats_app.trainers.trainer import Session
from fedstats_app.trainers.training import Training
from fedstats_app.training.model import TunedModel
from fedstats_app.training.options import OptimizerOptions
from fedstats_app.wire.arrays import to_record, to_tensors
from fedstats_app.wire.training import EvaluationCounts


class GradientTraining(Training):
    """What is trained goes down to the clients and comes back in every round.

    Parameters
    ----------
    session : Session
        What it is given.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        request, head = self.request, session.head.head
        self.model = TunedModel.of(request, head, session.backbone.module).to(session.backbone.device)
        trained = self.model.trained_state()
        self.repeats, self.size = request.options.epochs, sum(tensor.numel() for tensor in trained.values())
        # What of the head clients need and is not trained.
        self._fixed = {
            name: torch.nan_to_num(tensor.detach().float(), neginf=0.0)
            for name, tensor in {"head.weight": head.weight, "head.bias": head.bias}.items()
            if name not in trained
        }
        self._arrays = to_record(trained)
        optimizer = session.options(OptimizerOptions)
        self._inner = make_optimizer(optimizer, buffers=self.model.buffer_names)
        self._strategy = FineTuning(
            self._inner,
            request,
            session.clients,
            fixed=self._fixed,
            fraction=session.tuning.fraction_tune,
            min_clients=session.min_clients,
            limits=UpdateLimits(optimizer.update_clip, optimizer.update_outlier, session.tuning.max_tuning_share),
        )
        self._checkpoints: Path = session.folder.path / "checkpoints" / session.name

    def run(self) -> tuple[TrainingResult, TunedModel]:
        """Train, from the newest checkpoint if there is one."""
        session, strategy = self.session, self._strategy
        self.announce(self.size)
        checkpoint = latest_checkpoint(self._checkpoints) if session.resume else None
        done = 0 if checkpoint is None else checkpoint.round
        if checkpoint is None:
            self.record(0, {})
        else:
            self._take(to_record(checkpoint.arrays))
            load_optimizer_state(self._inner, checkpoint.optimizer)
            self.stopped = str(checkpoint.metadata["stopped"])
            self.take_up(done)
            strategy.first_round = done + 1
        strategy.on_round = self._after_round
        if done < session.tuning.num_server_rounds and not self.stopped:
            strategy.start(session.grid, self._arrays, session.tuning.num_server_rounds - done)
        return self.result(), self.model

    def score(self, number: int) -> tuple[float | None, float | None]:
        """As the base; where stage 1 scored the head as training would, nobody is asked again."""
        known = self.session.known_score
        # Stage 1 scored at temperature 1, on features that only a probe sees too where they are in half precision.
        as_in_training = self.request.temperature == 1.0 and (
            self.on_features or self.session.backbone.autocast == "none"
        )
        return known if number == 0 and known is not None and as_in_training else super().score(number)

    def ask_clients(self, number: int) -> tuple[EvaluationCounts, dict[int, str]]:
        """Return how the model of a round does on what clients hold out, and why some did not say."""
        session = self.session
        return evaluate_model_on_clients(session.grid, self.request, session.clients, self._arrays, self._fixed, number)

    def _after_round(self, outcome: TrainingRound) -> bool:
        """Evaluate, record, write a checkpoint; return whether to stop."""
        number, tuning = outcome.server_round, self.session.tuning
        self._take(outcome.arrays)
        self.name_left_out(outcome.left_out)
        for client, times in outcome.clipped.items():
            line = (
                f"round {number}: the update of client {client}, {times:.3g} times as long as is usual, was shortened"
            )
            self.session.progress.say(f"{line} (update-clip)")
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
        stop = self.is_due(number) and self.stop_at_plateau()
        last = number == tuning.num_server_rounds
        if tuning.checkpoint_every and (stop or last or number % tuning.checkpoint_every == 0):
            save_checkpoint(
                self._checkpoints,
                number,
                to_tensors(outcome.arrays),
                optimizer_state(self._inner),
                {"name": self.session.name, "stopped": self.stopped},
            )
        return stop

    def _forward_passes(self, outcome: TrainingRound) -> int:
        """Return the backbone's passes over samples: a probe makes one, once, where stage 1 did not; a backward is two.

        Whatever a cache may have saved besides is luck and does not count.
        """
        if not self.on_features:
            return self.session.trainer.passes * self.repeats * sum(outcome.num_examples.values())
        if not self.session.made:
            return 0
        number, strategy = outcome.server_round, self._strategy
        before = {client for earlier in range(1, number) for client in strategy.participants(earlier)}
        return sum(self.session.clients[client] for client in set(strategy.participants(number)) - before)

    def _take(self, arrays: ArrayRecord) -> None:
        """Go on with the model of a round."""
        self._arrays = arrays
        self.model.load_trained_state(to_tensors(arrays))
