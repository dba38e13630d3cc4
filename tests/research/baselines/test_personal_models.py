"""FedProto and FedCGS's equation 12 against their descriptions; FedAvg and local training are what they say."""

import pytest
import torch
from torch import Tensor, nn

from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples
from fedstats_app.training.start import random_head
from fedstats_app.training.training_options import LocalOptions
from research.baselines.personal_models import Client, PersonalFederation, alignment_loss, class_mean_sum
from tests.support.golden import load, tensor

OPTIONS = LocalOptions(epochs=2, batch_size=1000, learning_rate=0.1)
Clients = dict[int, tuple[Tensor, Tensor]]


def federation(clients: Clients, *, num_rounds: int) -> PersonalFederation:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TunedModel(random_head(4, 5, 0), backbone=nn.Linear(6, 5), tune="full")
    own = {number: Client(TensorSamples(*one), TensorSamples(*one)) for number, one in clients.items()}
    return PersonalFederation(model, own, OPTIONS, num_rounds, seed=0)


ALL = torch.ones(4, dtype=torch.bool)


def test_the_alignment_term_is_the_golden_one_and_samples_without_a_prototype_do_not_count() -> None:
    arrays = load("features")
    features, labels, prototypes = (tensor(arrays[key]) for key in ("reg_f", "reg_y", "reg_proto"))
    weighted = alignment_loss(prototypes, ALL, 0.5)(features, labels)
    assert float(weighted) == pytest.approx(0.5 * float(arrays["reg_mse"]), rel=1e-12)
    present = torch.tensor([True, False, True, False])
    counted = present[labels]
    loss = alignment_loss(prototypes.masked_fill(~present[:, None], torch.nan), present, 1.0)
    assert float(loss(features, labels)) == float(loss(features[counted], labels[counted])) > 0.0
    none = alignment_loss(prototypes, ~ALL, 1.0)(features.requires_grad_(), labels)
    none.backward()
    assert float(none.detach()) == 0.0 and features.grad is not None and not features.grad.any()


def test_the_sum_form_is_the_golden_one() -> None:
    arrays = load("features")
    features, labels, prototypes = (tensor(arrays[name]) for name in ("reg_f", "reg_y", "reg_proto"))
    loss = class_mean_sum(prototypes, torch.ones(4, dtype=torch.bool), 0.5)(features, labels)
    assert float(loss) == pytest.approx(0.5 * float(arrays["reg_eq12"]), rel=1e-12)


def test_fedproto_holds_features_near_means_that_count_clients_alike(clients: Clients) -> None:
    """Two rounds of one step on all samples, by hand: the second at the mean of the clients' class means."""
    states: dict[int, dict[str, Tensor]] = {}
    prototypes, has = torch.zeros(4, 5), torch.zeros(4)
    for number, (inputs, labels) in clients.items():
        model = federation(clients, num_rounds=1).model
        _step(model, model(inputs), labels, 0.0)
        states[number] = model.trained_state()
        with torch.no_grad():
            features = model.features(inputs)
        for label in labels.unique():
            prototypes[label] += features[labels == label].mean(dim=0)
            has[label] += 1
    prototypes /= has.unsqueeze(1)
    expected = {}
    for number, (inputs, labels) in clients.items():
        model = federation(clients, num_rounds=1).model
        model.load_trained_state(states[number])
        features = model.features(inputs)
        _step(model, model.logits(features), labels, 3.0 * (features - prototypes[labels]).square().mean())
        expected[number] = int((model(inputs).argmax(dim=1) == labels).sum())
    assert federation(clients, num_rounds=2).fedproto(3.0) == expected


def _step(model: TunedModel, logits: Tensor, labels: Tensor, extra: Tensor | float) -> None:
    parameters = [one for one in model.parameters() if one.requires_grad]
    loss = nn.functional.cross_entropy(logits, labels) + extra
    with torch.no_grad():
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter -= OPTIONS.learning_rate * gradient
