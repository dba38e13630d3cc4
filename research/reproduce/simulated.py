"""Cells of a table that are no run of the app: what the papers compare with, simulated beside a run, in its folder.

Keys that begin with "simulation." are this module's; all others are of the app, whose run comes first.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedstats_app.backbones.feature_reader import DatasetSamples, FeatureReader
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.data.clients import partitions, split_holdout, test_split, training_set
from fedstats_app.methods import METHODS
from fedstats_app.report.head_file import read_head
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.training_record import RoundRecord, TrainingResult, forward_passes, training_bytes
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.training.evaluation import evaluate
from fedstats_app.training.local import Sgd
from fedstats_app.training.model import TunedModel
from fedstats_app.training.start import random_head
from fedstats_app.training.trainers import FULL
from fedstats_app.training.training_options import LocalOptions
from research.baselines.batch_norm import AdaptingModel
from research.baselines.mlp_head import federated_average
from research.baselines.personal_heads import features_of, global_heads, personal_heads, shared_statistics
from research.baselines.personal_models import Client, PersonalFederation, alignment_loss, class_mean_sum
from research.baselines.prompts import initial_prompts, prompt_adam, prompt_model, taking_prompts
from research.baselines.server_adam import ServerAdam
from research.reproduce.catalogue import PresetError
from research.reproduce.from_statistics import NODE, from_statistics, participation

PREFIX = "simulation."
# Approaches to personal models: heads in closed form, then networks that clients train.
PERSONAL = ("global", "closed-form", "local-only", "one-shot", "one-shot-sum", "fedavg-ft", "fedproto")
# Computations of research.reproduce.from_statistics, with their options.
STATISTICS = {"oracle": ("covariance",), "count-noise": ("noise", "epsilon"), "statistics-error": ("quantity",)}
# Cells that differ in these share a run.
STATISTICS_KEYS = {f"{PREFIX}{name}" for name in ("statistics", *(key for keys in STATISTICS.values() for key in keys))}


@dataclass(frozen=True)
class Simulation:
    """Keys of a simulation.

    Attributes
    ----------
    personal : str
        Approaches to personal models, some of :data:`PERSONAL`.
    rounds : int
        Of fedavg-ft and fedproto.
    epochs, learning_rate
        Of the others that are trained.
    alignment_weight : float
        Pulls features to class means (one-shot, one-shot-sum, fedproto).
    server : str
        Trainer of the whole network in place of `fine-tune`: average, or adam (FLSim's).
    server_rate : float
        Of adam.
    batch_norm : str
        Running statistics: frozen, kept or averaged, as
        :class:`research.baselines.batch_norm.AdaptingModel` has it.
    prompts : int
        Trained among the tokens of a frozen transformer, in place of its weights, with Adam on the clients; 0 is none.
    participation : float
        Share of the clients that a round asks, without replacement: results.json gets the accuracy after each round.
    statistics : str
        Computation from the statistics that the run has saved: one of :data:`STATISTICS`.
    covariance : str
        Of the oracle: full, diagonal, spherical.
    noise, epsilon
        Of count-noise: uniform, gaussian, laplace, in (0, 1).
    quantity : str
        Of statistics-error: class_means, covariance.
    """

    personal: str = ""
    rounds: int = 1
    epochs: int = 20
    learning_rate: float = 0.01
    alignment_weight: float = 1.0
    server: Literal["", "average", "adam"] = ""
    server_rate: float = 1e-3
    batch_norm: Literal["frozen", "kept", "averaged"] = "frozen"
    prompts: int = 0
    participation: float = 1.0
    statistics: str = ""
    covariance: str = "full"
    noise: str = "uniform"
    epsilon: float = 0.5
    quantity: str = "class_means"

    def local(self, *, flip: bool) -> LocalOptions:
        """Return the options of clients that train models of their own: FedCGS's, after FedPAC."""
        how: dict[str, Any] = {"batch_size": 128, "momentum": 0.5, "weight_decay": 5e-4}
        return LocalOptions(epochs=self.epochs, learning_rate=self.learning_rate, flip=flip, **how)

    @property
    def entry(self) -> str:
        """Name of the entry in the section "simulated" of results.json; "" without ``statistics``."""
        return "-".join([self.statistics, *map(str, self.options.values())]) if self.statistics else ""

    @property
    def options(self) -> dict[str, Any]:
        """The keys that ``statistics`` takes."""
        return {name: getattr(self, name) for name in STATISTICS[self.statistics]}

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Simulation | None:
        """Read the keys of a cell; None if it has none.

        Raises
        ------
        PresetError
            If a key is unknown.
        """
        found = {key.removeprefix(PREFIX): value for key, value in settings.items() if key.startswith(PREFIX)}
        names = {field.name.replace("_", "-"): field.name for field in fields(cls)}
        if unknown := sorted(found.keys() - names):
            raise PresetError(f"{PREFIX}{unknown[0]}: no such key; there are {', '.join(names)}")
        made = cls(**{names[key]: value for key, value in found.items()}) if found else None
        for name, allowed in {"server": ("", "average", "adam"), "batch_norm": ("frozen", "kept", "averaged")}.items():
            if made is not None and getattr(made, name) not in allowed:
                raise PresetError(f"{PREFIX}{name}: must be one of {', '.join(allowed)}, got {getattr(made, name)!r}")
        if made and made.statistics not in ("", *STATISTICS):
            raise PresetError(f"{PREFIX}statistics: must be one of {', '.join(STATISTICS)}, got {made.statistics!r}")
        return made


def of_app(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a cell that the app has."""
    return {key: value for key, value in settings.items() if not key.startswith(PREFIX)}


def run_of_app(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the run beside which a cell is simulated; what is simulated is not trained there."""
    simulation, own = Simulation.of(settings), of_app(settings)
    return {**own, "fine-tune": "none"} if simulation is not None and simulation.server else own


def complete(folder: Path, settings: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Add what is simulated to the results of a completed run that lacks it."""
    simulation = Simulation.of(settings)
    if simulation is None:
        return
    config, results = AppConfig.from_run_config(of_app(settings)), RunFolder(folder, "", datetime.now(UTC))
    if (entry := simulation.entry) and entry not in results.read_results().get("simulated", {}):
        say(f"  simulated: {entry}")
        found = from_statistics(config, simulation.statistics, simulation.options, folder)
        results.add_results("simulated", {entry: found})
    if simulation.participation < 1.0 and "participation" not in results.read_results():
        say("  simulated: participation")
        results.add_results("participation", participation(config, simulation.participation))
    for approach in filter(None, simulation.personal.split(",")):
        if approach not in results.read_results().get("personal", {}):
            say(f"  simulated: {approach}")
            results.add_results("personal", personal_models(config, simulation, approach))
    if simulation.server:
        for start in config.start_heads:
            name = f"{start}-{'prompt' if simulation.prompts else 'full'}"
            if name not in results.read_results().get("training", {}):
                say(f"  simulated: {name}")
                train(config, simulation, start, name, results)


def train(config: AppConfig, simulation: Simulation, start: str, name: str, folder: RunFolder) -> None:
    """Train from one head as a run would, by the simulation's server; write rounds and result into the folder.

    A training that was interrupted begins anew.

    Raises
    ------
    PresetError
        If there is no test split.
    """
    tuning, seed = config.tuning, config.run.seed
    backbone, dataset = loaded_backbone(config.backbone_for(own_data=False)), training_set(config.data)
    test = test_split(config.data.test_dataset or config.data.dataset, config.data)
    if test is None:
        raise PresetError(f"{name}: a simulated training needs a test split, got none")
    samples = DatasetSamples(test, np.arange(len(test)), backbone)
    if start == "random":
        head = random_head(len(dataset.class_names), backbone.feature_dim, seed, bias=tuning.tune_bias)
    else:
        head, _ = read_head(folder.path / "heads" / f"{start}.safetensors")
    how: dict[str, Any] = {"tune_bias": tuning.tune_bias, "temperature": tuning.logit_temperature}
    if simulation.prompts:
        network = taking_prompts(backbone.module)
        drawn = initial_prompts(network, simulation.prompts, seed)
        model = prompt_model(head, network, drawn, temperature=tuning.logit_temperature)
    elif simulation.batch_norm == "frozen":
        model = TunedModel(head, backbone=backbone.module, tune="full", **how)
    else:
        model = AdaptingModel(head, backbone.module, simulation.batch_norm, **how)
    model = model.to(backbone.device)
    parts = [part for part in partitions(config.data, config.partition, seed) if len(part)]
    options = config.local.with_rate(FULL.rate)
    if config.optimizer.optimizer == "fedprox":
        options = replace(options, proximal_mu=config.optimizer.proximal_mu)
    buffers = model.buffer_names if isinstance(model, AdaptingModel) else frozenset[str]()
    server = ServerAdam(simulation.server_rate, buffers=buffers) if simulation.server == "adam" else None
    num_clients = max(1, round(tuning.fraction_tune * len(parts)))
    size = sum(tensor.numel() for tensor in model.trained_state().values())
    rounds: list[RoundRecord] = []
    began = time.perf_counter()

    def after_round() -> None:
        nonlocal began
        number = len(rounds)
        found = evaluate(model, samples) if tuning.is_scored(number) else None
        rounds.append(
            RoundRecord(
                name.removeprefix(f"{start}-"),
                start,
                number,
                accuracy=None if found is None else found.confusion.accuracy,
                loss=None if found is None else found.loss,
                num_clients=num_clients if number else 0,
                bytes_up=training_bytes(1, num_clients, size) // 2 if number else 0,
                bytes_down=training_bytes(1, num_clients, size) // 2 if number else 0,
                seconds=time.perf_counter() - began,
            )
        )
        folder.append_round(rounds[-1])
        began = time.perf_counter()

    after_round()
    federated_average(
        model,
        [DatasetSamples(dataset, part, backbone) for part in parts],
        options,
        num_rounds=tuning.num_server_rounds,
        fraction=tuning.fraction_tune,
        seed=seed,
        optimizer=prompt_adam if simulation.prompts else Sgd,
        step=(lambda before, mean: mean) if server is None else server.step,
        after_round=after_round,
    )
    result = TrainingResult(
        name,
        rounds[0].stage,
        start,
        rounds,
        formula_bytes=training_bytes(tuning.num_server_rounds, num_clients, size),
        thesis_forward_passes=forward_passes(
            FULL.passes,
            num_examples=sum(map(len, parts)) * num_clients // len(parts),
            num_rounds=tuning.num_server_rounds,
            repeats=options.epochs,
        ),
        display_name=FULL.display_name,
        learning_rate=options.learning_rate,
    )
    folder.add_results("training", {name: result.to_json()})


def personal_models(config: AppConfig, simulation: Simulation, approach: str) -> dict[str, Any]:
    """Return the entries of results.json of one approach, each client's model scored on samples that it keeps.

    Bytes are not counted.
    """
    started, seed = time.perf_counter(), config.run.seed
    backbone, dataset = loaded_backbone(config.backbone_for(own_data=False)), training_set(config.data)
    parts = {}
    for number, part in enumerate(partitions(config.data, config.partition, seed)):
        kept, held_out = split_holdout(dataset, part, config.data.holdout_fraction, seed, number)
        if len(kept):
            parts[number] = kept, held_out
    clients = {
        number: Client(*(DatasetSamples(dataset, part, backbone) for part in both)) for number, both in parts.items()
    }
    weight, federation = simulation.alignment_weight, None
    if approach not in ("global", "closed-form"):
        head = random_head(len(dataset.class_names), backbone.feature_dim, seed)
        model = TunedModel(head, backbone=backbone.module, tune="full").to(backbone.device)
        options = simulation.local(flip=config.local.flip)
        federation = PersonalFederation(model, clients, options, simulation.rounds, seed)
    if federation is None or approach.startswith("one-shot"):
        reader = FeatureReader(backbone, NODE.cache_root(config.cache))
        features = {
            number: (features_of(reader, dataset, kept), features_of(reader, dataset, held_out))
            for number, (kept, held_out) in parts.items()
        }
        shared = shared_statistics([training for training, _ in features.values()], len(dataset.class_names))
        methods = {name: method for name, method in config.configured_methods.items() if not method.keeps_rows}
    if federation is None:
        heads = global_heads if approach == "global" else personal_heads
        found = {f"{approach}-{name}": number for name, number in heads(methods, shared, features, seed).items()}
    elif approach == "local-only":
        found = {approach: federation.trained_alone(None)}
    elif approach == "fedavg-ft":
        before, after = federation.fedavg()
        found = {"fedavg": before, "fedavg-ft": after}
    elif approach == "fedproto":
        found = {approach: federation.fedproto(weight)}
    elif approach in ("one-shot", "one-shot-sum"):
        head = METHODS["fedcgs"].default().solve(shared)
        head = replace(head, bias=torch.where(head.present, head.bias, 0.0))
        start = {"head.weight": head.weight.float(), "head.bias": head.bias.float()}
        federation.model.load_trained_state({**federation.model.trained_state(), **start})
        extra_loss = alignment_loss if approach == "one-shot" else class_mean_sum
        found = {approach: federation.trained_alone(extra_loss(shared.class_means.float(), shared.present, weight))}
    else:
        raise PresetError(f"{PREFIX}personal: must be some of {', '.join(PERSONAL)}, got {approach!r}")
    seconds = time.perf_counter() - started
    return {name: _entry(correct, clients, seconds) for name, correct in found.items()}


def _entry(correct: Mapping[int, int], clients: Mapping[int, Client], seconds: float) -> dict[str, Any]:
    """Return mean and deviation of the clients' accuracies, every client counting alike, and each of them."""
    sizes = {number: len(client.test.labels) for number, client in clients.items()}
    accuracies = {str(number): correct[number] / size for number, size in sizes.items() if size}
    return {
        "accuracy_mean": statistics.fmean(accuracies.values()),
        "accuracy_std": statistics.pstdev(accuracies.values()),
        "num_clients": len(accuracies),
        "accuracies": accuracies,
        "seconds": round(seconds, 3),
    }
