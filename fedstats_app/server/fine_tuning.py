"""Stage 2 of a run: one training per head to start from, each finished before the next begins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.base.progress import Progress
from fedstats_app.heads import LinearHead, SolveReport
from fedstats_app.report.head_file import Normalisation, read_head, with_module
from fedstats_app.report.record import trained_head_metadata
from fedstats_app.report.state import SolvedHead, State, best_head
from fedstats_app.report.tables import trainings_table
from fedstats_app.report.training_record import TrainingResult
from fedstats_app.server.run import Run
from fedstats_app.server.training import Training
from fedstats_app.training.model import TunedModel
from fedstats_app.training.start import random_head, zero_head
from fedstats_app.training.trainers import Trainer
from fedstats_app.training.training_options import FILE_HEAD


def given_heads(run: Run) -> dict[str, SolvedHead]:
    """Make the heads to start from that need no training data, by name, so that what does not suit is an error early.

    Raises
    ------
    FileNotFoundError, ValueError
        As :func:`label_word_head` and :func:`head_of_file`.
    """
    tuning, backbone, names = run.config.tuning, run.backbone, run.class_names
    num_classes, dim = len(names), backbone.feature_dim
    made = {
        "random": random_head(num_classes, dim, run.config.run.seed, bias=tuning.tune_bias),
        "zero": zero_head(num_classes, dim),
    }
    if "label-words" in run.config.start_heads:
        made["label-words"] = label_word_head(tuning.words, backbone, names)
    heads = {name: SolvedHead(head) for name, head in made.items()}
    if tuning.start_head_file:
        heads[FILE_HEAD] = head_of_file(Path(tuning.start_head_file).expanduser(), backbone, names)
    return heads


def fine_tune(run: Run, state: State, *, trainer: Trainer, given: Mapping[str, SolvedHead]) -> State:
    """Train from every head that the run asks for, save what comes of it, and show the results beside each other.

    The clients in the heads of stage 1 train; ``given`` is what :func:`given_heads` made.
    """
    config, progress = run.config, run.progress
    clients = run.trainable(state)
    if not clients:
        raise ValueError(
            f"fine-tune: none of the {len(state.clients)} sites in the heads trains: releases hold no samples, and an "
            "owner may allow statistics alone"
        )
    how = f" by {config.optimizer.optimizer}" if trainer.by_gradient else ""
    results, names = [], _start_names(config.start_heads, state, progress)
    progress.say(f"fine-tune {trainer.name}{how} on {len(clients)} sites, after {progress.elapsed}")
    # Who trains by gradients loads nothing of FedMeZO, and the other way round.
    kind: type[Training]
    if trainer.by_gradient:
        from fedstats_app.server.gradient import GradientTraining as kind
    else:
        from fedstats_app.server.mezo import MezoTraining as kind
    with progress.doing("training", len(names)) as step:
        for number, name in enumerate(names):
            several = f" ({number + 1} of {len(names)} trainings)" if len(names) > 1 else ""
            step.at(number, f"{name}-{trainer.name}{several}")
            head = state.heads[name] if name not in given else _with_means(given[name], state)
            training = kind(run, trainer, clients, name, head, number)
            result, model = training.train()
            _save(training, result, model)
            results.append(result)
    if config.run.plots and any(result.final_accuracy is not None for result in results):
        from fedstats_app.report.plots.later_stages import training_figure
        from fedstats_app.report.plots.style import save_png

        (plots := run.folder.path / "plots").mkdir(exist_ok=True)
        figure = training_figure(results, f"{run.title}, {len(clients)} sites")
        save_png(figure, plots / "fine_tuning.png")
    progress.say(f"the training is done after {progress.elapsed}")
    print(trainings_table(results), flush=True)
    return state


def _start_names(names: tuple[str, ...], state: State, progress: Progress) -> tuple[str, ...]:
    if names != ("best",):
        return names
    scored = {name: start.accuracy for name, start in state.heads.items() if start.accuracy is not None}
    best = best_head(scored, state.client_accuracies, state.clients) if scored else next(iter(state.heads))
    progress.say(f"start-head: best is {best}")
    return (best,)


def _with_means(head: SolvedHead, state: State) -> SolvedHead:
    """Add what stage 1 says of trainings, if it solved for a head."""
    same = next(iter(state.heads.values()), None)
    return head if same is None else replace(head, probe_step=same.probe_step)


def _save(training: Training, result: TrainingResult, model: TunedModel) -> None:
    """Write the head, the backbone if it was tuned, and the result of the training."""
    run, start = training.run, training.head
    config, folder = run.config, run.folder
    metadata = trained_head_metadata(
        result,
        training.clients,
        by=training.trainer.by(config.optimizer.optimizer),
        temperature=config.tuning.logit_temperature if training.trainer.by_gradient else 1.0,
    )
    tuned = None if model.backbone is None else with_module(run.backbone, model.backbone, f"tuned, {result.name}")
    normalisation: Normalisation = "groupnorm" if config.tuning.batch_norm == "groupnorm" else "batch"
    head = model.to_head(start.head.present)
    folder.save_head(result.name, head, {**run.metadata, **metadata}, tuned=tuned, normalisation=normalisation)
    folder.add_results("training", {result.name: result.to_json()})


def label_word_head(words: Sequence[str], backbone: Backbone, class_names: Sequence[str]) -> LinearHead:
    """Make the head that scores each class by the language model's score for the class's word.

    Raises
    ------
    ValueError
        If there is not one word per class, a word is not one token, or the backbone has no language head.
    """
    if len(words) != len(class_names):
        raise ValueError(
            f"label-words must be one word per class, for {', '.join(class_names[:20])}; got {', '.join(words)}"
        )
    if backbone.language_head is None:
        raise ValueError(f"label-words: backbone {backbone.name} has no language head without a text-template")
    weight, bias = backbone.language_head.rows(words)
    return LinearHead(weight, bias, report=SolveReport(regulariser=f"label words {', '.join(words)}"))


def head_of_file(path: Path, backbone: Backbone, class_names: Sequence[str]) -> SolvedHead:
    """Read a head that an earlier run saved, solved or trained, to train on from.

    ``path`` is a ``heads/NAME.safetensors`` of its run folder; ``class_names`` say the order of its rows here.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, it is damaged, or of another backbone or other classes.
    """
    head, metadata = read_head(path)
    names = json.loads(metadata["class-names"])
    if sorted(names) != sorted(class_names):
        raise ValueError(
            f"start-head: {path} is for the classes {', '.join(names[:20])}; "
            f"this run's are {', '.join(class_names[:20])}"
        )
    if metadata["backbone-fingerprint"] != backbone.fingerprint:
        tuned = metadata.get("tuned-backbone", "")
        advice = f"; backbone-weights can name the weights tuned with it, {path.with_name(tuned)}" if tuned else ""
        raise ValueError(
            f"start-head: {path} is for features of {metadata['backbone']}, fingerprint "
            f"{metadata['backbone-fingerprint'][:16]}; this run's are of {backbone.name}, fingerprint "
            f"{backbone.fingerprint[:16]}{advice}"
        )
    rows = [names.index(name) for name in class_names]
    report = SolveReport(regulariser=f"of {path.stem}")
    ordered = LinearHead(head.weight[rows], head.bias[rows], head.present[rows], report)
    return SolvedHead(ordered)
