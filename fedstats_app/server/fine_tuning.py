"""Stage 2 of a run: one training per head to start from, each finished before the next begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.grid.progress import Progress, in_words
from fedstats_app.report.head_file import Normalisation, with_module
from fedstats_app.report.model_card import write_model_card
from fedstats_app.report.record import trained_head_metadata
from fedstats_app.report.state import SolvedHead, State, best_head
from fedstats_app.report.tables import training_table
from fedstats_app.report.training_record import TrainingResult
from fedstats_app.server.evaluation_data import ServerTestSet
from fedstats_app.server.machine import TRAINING_PASSES, expected_seconds
from fedstats_app.server.run import Run
from fedstats_app.server.start_heads import head_of_file, label_word_head
from fedstats_app.server.training.session import Session
from fedstats_app.statistics import FeatureMap, IdentityMap
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples
from fedstats_app.training.start import random_head, zero_head
from fedstats_app.training.trainers import Trainer
from fedstats_app.training.training_options import FILE_HEAD, MADE_HEADS, TuningOptions


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
        how = f" by {config.optimizer.optimizer}" if trainer.by_gradient else ""
        results, names = [], _start_names(config.start_heads, state, progress)
        tuning, simulated, test_set = config.tuning, run.federation.simulated, run.test_set
        seconds = 0.0
        if trainer.passes >= TRAINING_PASSES:  # less takes only a head, on features that are there
            passes = trainer.passes * config.local.epochs * tuning.num_server_rounds * tuning.fraction_tune
            seconds = expected_seconds(run.backbone, clients, passes, simulated=simulated)
        expected = len(names) * seconds
        guess = f"; about {in_words(expected)} at the speed of the server's machine" if expected else ""
        progress.say(f"fine-tune {trainer.name}{how} on {len(clients)} clients, after {progress.elapsed}{guess}")
        # What stage 1 measured, on all clients.
        known = state.client_scores if clients.keys() == state.clients.keys() else {}
        with progress.doing("training", len(names), expected=expected) as step:
            for number, name in enumerate(names):
                several = f" ({number + 1} of {len(names)} trainings)" if len(names) > 1 else ""
                step.at(number, f"{name}-{trainer.name}{several}")
                head = _start_head(name, state, tuning, run.backbone, run.class_names, config.run.seed)
                local = config.local_from(name)
                session = Session(
                    trainer=trainer,
                    tuning=tuning,
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
                    test_samples=None if test_set is None else partial(_test_samples, test_set, head.feature_map),
                    known_score=known.get(name),
                    folder=run.folder,
                    resume=bool(config.run.resume),
                    progress=progress,
                )
                result, model = _trained(session)
                by = trainer.by(config.optimizer.optimizer)
                evaluated_on = "clients" if test_set is None else "server"
                _save(session, result, model, run.metadata, by=by, evaluated_on=evaluated_on)
                results.append(result)
        if config.run.plots and any(result.final_accuracy is not None for result in results):
            from fedstats_app.report.plots.later_stages import training_figure
            from fedstats_app.report.plots.style import save_png

            run.folder.plots_path.mkdir(exist_ok=True)
            figure = training_figure(results, f"{run.title}, {len(clients)} clients")
            save_png(figure, run.folder.plots_path / "fine_tuning.png")
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


def _test_samples(test_set: ServerTestSet, feature_map: FeatureMap, on_features: bool) -> Samples:
    return test_set.samples(feature_map if on_features else None)


def _start_names(asked: tuple[str, ...], state: State, progress: Progress) -> tuple[str, ...]:
    if asked != ("best",):
        return asked
    scored = {name: start.accuracy for name, start in state.heads.items() if start.accuracy is not None}
    best = best_head(scored, state.client_accuracies, state.clients) if scored else next(iter(state.heads))
    progress.say(f"start-head: best is {best}")
    return (best,)


def _start_head(
    name: str, state: State, tuning: TuningOptions, backbone: Backbone, class_names: tuple[str, ...], seed: int
) -> SolvedHead:
    if name == FILE_HEAD:
        saved = head_of_file(Path(tuning.start_head_file).expanduser(), backbone, class_names)
        return replace(saved, probe_step=_probe_step(state, saved.feature_map))
    num_classes, dim = len(class_names), backbone.feature_dim
    made = {
        "random": lambda: random_head(num_classes, dim, seed, bias=tuning.tune_bias),
        "zero": lambda: zero_head(num_classes, dim),
        "label-words": lambda: label_word_head(tuning.words, backbone, class_names),
    }
    if name not in made:
        return state.heads[name]
    return SolvedHead(made[name](), IdentityMap(), probe_step=_probe_step(state, IdentityMap()))


def _probe_step(state: State, feature_map: FeatureMap) -> float | None:
    """Return what stage 1 says of a probe's steps on such features, if it solved for a head of them."""
    return next((one.probe_step for one in state.heads.values() if one.feature_map == feature_map), None)


def _save(
    session: Session,
    result: TrainingResult,
    model: TunedModel,
    metadata: Mapping[str, str],
    *,
    by: str,
    evaluated_on: str,
) -> None:
    """Write the head, the backbone if it was tuned, and what the training achieved."""
    folder, tuning, start = session.folder, session.tuning, session.head
    metadata = {
        **metadata,
        **trained_head_metadata(
            result,
            start.feature_map,
            session.clients,
            by=by,
            temperature=tuning.logit_temperature,
            evaluated_on=evaluated_on,
        ),
    }
    tuned = None if model.backbone is None else with_module(session.backbone, model.backbone, f"tuned, {result.name}")
    normalisation: Normalisation = "groupnorm" if tuning.batch_norm == "groupnorm" else "batch"
    head = model.to_head(start.head.present)
    folder.save_head(result.name, head, metadata, tuned=tuned, normalisation=normalisation)
    folder.add_results("training", {result.name: result.to_json()})
