"""Stage 2 of a run: one training per head to start from, each finished before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedstats_app.grid.progress import in_words
from fedstats_app.report.head_file import Normalisation, with_module
from fedstats_app.report.model_card import write_model_card
from fedstats_app.report.record import trained_head_metadata
from fedstats_app.report.state import SolvedHead, State, best_head
from fedstats_app.report.tables import training_table
from fedstats_app.report.training_record import TrainingResult
from fedstats_app.server.machine import TRAINING_PASSES, expected_seconds
from fedstats_app.server.run import Run
from fedstats_app.server.start_heads import head_of_file, label_word_head
from fedstats_app.server.training.session import Session
from fedstats_app.statistics import FeatureMap, IdentityMap
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples
from fedstats_app.training.start_heads import random_head, zero_head
from fedstats_app.training.trainers import Trainer
from fedstats_app.training.training_options import FILE_HEAD, MADE_HEADS


@dataclass(frozen=True)
class FineTuning:
    """Trains from every head that the run asks for, on the clients that are in it.

    Attributes
    ----------
    trainer : Trainer
        How.
    """

    trainer: Trainer

    def run(self, run: Run, state: State) -> State:
        """Train, save each head and what its training achieved, and show them beside each other."""
        config, progress = run.config, run.progress
        trainer, clients = self.trainer, run.trainable(state)
        by = f" by {config.optimizer.optimizer}" if trainer.by_gradient else ""
        results, names = [], _start_names(run, state)
        expected = len(names) * _expected(run, trainer, clients)
        guess = f"; about {in_words(expected)} at the speed of the server's machine" if expected else ""
        progress.say(f"fine-tune {trainer.name}{by} on {len(clients)} clients, after {progress.elapsed}{guess}")
        # What stage 1 measured, on all clients.
        known = state.client_scores if clients.keys() == state.clients.keys() else {}
        with progress.doing("training", len(names), expected=expected) as step:
            for number, name in enumerate(names):
                several = f" ({number + 1} of {len(names)} trainings)" if len(names) > 1 else ""
                step.at(number, f"{name}-{trainer.name}{several}")
                head, local = _start_head(run, state, name), config.local_from(name)
                session = Session(
                    trainer=trainer,
                    tuning=config.tuning,
                    groups={**{type(group): group for group in config.groups}, type(local): local},
                    start=name,
                    head=head,
                    made=name in MADE_HEADS,
                    number=number,
                    request=replace(run.training_request(), feature_map=head.feature_map, options=local.with_rate()),
                    backbone=run.backbone,
                    grid=run.grid,
                    clients=clients,
                    min_clients=config.federation.min_clients,
                    mask_absent=config.run.mask_absent,
                    test_samples=_test_samples(run, head.feature_map),
                    known_score=known.get(name),
                    folder=run.folder,
                    resume=bool(config.run.resume),
                    progress=progress,
                )
                result, model = _trained(session)
                _save(run, session, result, model)
                results.append(result)
        if config.run.plots and any(result.final_accuracy is not None for result in results):
            from fedstats_app.report.plots.fine_tuning import plot_training

            run.folder.plots_path.mkdir(exist_ok=True)
            plot_training(results, run.folder.plots_path / "fine_tuning.png", f"{run.title}, {len(clients)} clients")
        write_model_card(run.folder.path)
        progress.say(f"done after {progress.elapsed}")
        print(training_table(results), flush=True)
        return state


def _trained(session: Session) -> tuple[TrainingResult, TunedModel]:
    """Train; who trains by gradients loads nothing of FedMeZO, and the other way round."""
    if session.trainer.by_gradient:
        from fedstats_app.server.training.gradient import GradientTraining

        return GradientTraining(session).run()
    from fedstats_app.server.training.mezo import MezoTraining

    return MezoTraining(session).run()


def _expected(run: Run, trainer: Trainer, clients: Mapping[int, int]) -> float:
    """Return about how long one training will take, 0 where nobody can say or only a head is trained."""
    if trainer.passes < TRAINING_PASSES:
        return 0.0
    tuning = run.config.tuning
    rounds = tuning.num_server_rounds * tuning.fraction_tune
    return expected_seconds(
        run.backbone,
        clients,
        trainer.passes * run.config.local.epochs * rounds,
        simulated=run.federation.simulated,
    )


def _test_samples(run: Run, feature_map: FeatureMap) -> Callable[[bool], Samples] | None:
    test_set = run.test_set
    if test_set is None:
        return None
    return lambda on_features: test_set.samples(feature_map if on_features else None)


def _start_names(run: Run, state: State) -> tuple[str, ...]:
    if run.config.start_heads != ("best",):
        return run.config.start_heads
    scored = {name: start.accuracy for name, start in state.heads.items() if start.accuracy is not None}
    best = best_head(scored, state.client_accuracies, state.clients) if scored else next(iter(state.heads))
    run.progress.say(f"start-head: best is {best}")
    return (best,)


def _start_head(run: Run, state: State, name: str) -> SolvedHead:
    if name == FILE_HEAD:
        path = Path(run.config.tuning.start_head_file).expanduser()
        saved = head_of_file(path, run.backbone, run.class_names)
        return replace(saved, probe_step=_probe_step(state, saved.feature_map))
    num_classes, dim, tuning = len(run.class_names), run.backbone.feature_dim, run.config.tuning
    made = {
        "random": lambda: random_head(num_classes, dim, run.config.run.seed, bias=tuning.tune_bias),
        "zero": lambda: zero_head(num_classes, dim),
        "label-words": lambda: label_word_head(tuning.words, run.backbone, run.class_names),
    }
    if name not in made:
        return state.heads[name]
    return SolvedHead(made[name](), IdentityMap(), probe_step=_probe_step(state, IdentityMap()))


def _probe_step(state: State, feature_map: FeatureMap) -> float | None:
    """Return what stage 1 says of a probe's steps on such features, if it solved for a head of them."""
    return next((one.probe_step for one in state.heads.values() if one.feature_map == feature_map), None)


def _save(run: Run, session: Session, result: TrainingResult, model: TunedModel) -> None:
    """Write the head, the backbone if it was tuned, and what the training achieved."""
    config, start = run.config, session.head
    metadata = {
        **run.metadata,
        **trained_head_metadata(
            result,
            start.feature_map,
            session.clients,
            by=session.trainer.by(config.optimizer.optimizer),
            temperature=config.tuning.logit_temperature,
            evaluated_on="clients" if run.test_set is None else "server",
        ),
    }
    tuned = None if model.backbone is None else with_module(run.backbone, model.backbone, f"tuned, {result.name}")
    normalisation: Normalisation = "groupnorm" if config.tuning.batch_norm == "groupnorm" else "batch"
    head = model.to_head(start.head.present)
    run.folder.save_head(result.name, head, metadata, tuned=tuned, normalisation=normalisation)
    run.folder.add_results("training", {result.name: result.to_json()})
