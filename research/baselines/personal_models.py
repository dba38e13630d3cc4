"""Personal models that are trained: alone, by FedCGS in one shot, by FedProto, and by FedAvg with local training.

Tan et al., "FedProto", AAAI 2022; Xu, Tong, Huang, "Personalized Federated Learning with Feature Alignment and
Classifier Collaboration", ICLR 2023 (the split); Guan et al. 2025 (FedCGS), equation 12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedstats_app.statistics import FeatureStatistics
from fedstats_app.training.evaluation import evaluate
from fedstats_app.training.local import ExtraLoss, train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples
from fedstats_app.training.training_options import LocalOptions
from research.baselines.mlp_head import federated_average

_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class Client:
    """Samples to train on, at least one, and samples to test on."""

    training: Samples
    test: Samples

    def num_correct(self, model: TunedModel) -> int:
        """Count the test samples that a model predicts right."""
        return evaluate(model, self.test).confusion.num_correct


@dataclass(frozen=True, eq=False)
class PersonalFederation:
    """Clients by number, and how they train.

    Attributes
    ----------
    model : TunedModel
        From a random head, all of it trained; every approach begins with it as it is given.
    options : LocalOptions
        Of training alone; a round has one local epoch.
    num_rounds : int
        Of FedAvg and FedProto.
    """

    model: TunedModel
    clients: Mapping[int, Client]
    options: LocalOptions
    num_rounds: int
    seed: int

    def fedproto(self, weight: float) -> dict[int, int]:
        """Run FedProto, whose models stay with the clients; return how many test samples each predicts right.

        Features are held near the prototypes by their mean squared distance times ``weight``. Prototypes are the means
        of the clients' class means, each client that has the class counting alike, as in the authors' code.
        """
        own, extra_loss = dict.fromkeys(self.clients, self.model.trained_state()), None
        options = replace(self.options, epochs=1)
        for server_round in range(1, self.num_rounds + 1):
            found: dict[int, FeatureStatistics] = {}
            for number, client in self.clients.items():
                self.model.load_trained_state(own[number])
                key = (self.seed, number, server_round)
                train_locally(self.model, client.training, options, key=key, extra_loss=extra_loss)
                own[number] = self.model.trained_state()
                found[number] = class_statistics(self.model, client.training)
            counts = torch.stack([statistics.present for statistics in found.values()]).sum(dim=0)
            sums = torch.stack([statistics.class_means for statistics in found.values()]).sum(dim=0)
            means = (sums / counts.clamp(min=1).unsqueeze(1)).float()
            extra_loss = alignment_loss(means, counts > 0, weight)
        return {number: self._scored(own[number], client) for number, client in self.clients.items()}

    def fedavg(self) -> tuple[dict[int, int], dict[int, int]]:
        """Run FedAvg, then train a copy on every client; return the right test samples before and after that."""
        options = replace(self.options, epochs=1)
        shared = [client.training for client in self.clients.values()]
        federated_average(self.model, shared, options, num_rounds=self.num_rounds, fraction=1.0, seed=self.seed)
        before = {number: client.num_correct(self.model) for number, client in self.clients.items()}
        return before, self.trained_alone(None)

    def trained_alone(self, extra_loss: ExtraLoss | None) -> dict[int, int]:
        """Train a copy of the model on every client; return how many test samples each predicts right."""
        start, found = self.model.trained_state(), {}
        for number, client in self.clients.items():
            self.model.load_trained_state(start)
            key = (self.seed, number, 1)
            train_locally(self.model, client.training, self.options, key=key, extra_loss=extra_loss)
            found[number] = client.num_correct(self.model)
        return found

    def _scored(self, state: Mapping[str, Tensor], client: Client) -> int:
        self.model.load_trained_state(state)
        return client.num_correct(self.model)


def class_statistics(model: TunedModel, samples: Samples) -> FeatureStatistics:
    """Compute the class counts and sums of the features that a model gives samples."""
    total = FeatureStatistics.zeros(model.num_classes, model.head.weight.shape[1], gram=False)
    for indices in torch.split(torch.arange(len(samples.labels)), _AT_ONCE):
        with torch.no_grad():
            features = model.features(samples.inputs(indices).to(model.device)).cpu()
        total += FeatureStatistics.from_features(features, samples.labels[indices], model.num_classes, gram=False)
    return total


def alignment_loss(prototypes: Tensor, present: Tensor, weight: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the extra loss for :func:`train_locally` that holds features near class means.

    It is ``weight`` times the mean of (f - mu_c)^2 over samples and coordinates, as FedProto and FedPAC have it with a
    weight of 1; FedCGS gives no weight. Prototypes (C, D) are used in the features' dtype and on their device. Samples
    count if their class is present, (C,) bool; without any the loss is 0.
    """

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        counted = present.to(labels.device)[labels]
        offsets = features[counted] - prototypes.to(features)[labels[counted]]
        return weight * (offsets.square().mean() if len(offsets) else offsets.sum())

    return loss


def class_mean_sum(prototypes: Tensor, present: Tensor, weight: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return eq. 12 of FedCGS as it was meant, an extra loss: the sum over classes of the class mean of ||f - mu_c||^2.

    As printed, the 1/N_c stands outside of the sum over the classes c whose samples it counts. Parameters are those of
    :func:`alignment_loss`, which is smaller by a factor of about D times the number of classes.
    """

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        counted = present.to(labels.device)[labels]
        labels = labels[counted]
        offsets = features[counted] - prototypes.to(features)[labels]
        counts = labels.bincount(minlength=len(prototypes)).to(offsets.dtype)
        return weight * (offsets.square().sum(dim=1) / counts[labels]).sum()

    return loss
