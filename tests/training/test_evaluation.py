import pytest
import torch
from torch import nn

from fedstats_app.heads import ConfusionMatrix
from fedstats_app.training.evaluation import evaluate
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples
from tests.support.networks import HEAD, make_features, make_images


def test_predictions_and_loss_are_the_heads(network: nn.Module) -> None:
    samples = make_images(50)
    made = evaluate(TunedModel(HEAD, backbone=network, tune="full", temperature=0.5), samples, batch_size=16)
    logits = HEAD.logits(network(samples.inputs(torch.arange(50))))
    log_probabilities = (logits / 0.5).log_softmax(dim=1)
    expected = ConfusionMatrix.from_predictions(samples.labels, logits.argmax(dim=1), 3)
    assert torch.equal(made.confusion.matrix, expected.matrix)
    assert made.loss_sum == pytest.approx(-float(log_probabilities[torch.arange(50), samples.labels].sum()), rel=1e-6)
    assert made.loss == made.loss_sum / 50


def test_scores_of_parts_add_up() -> None:
    model, samples = TunedModel(HEAD, tune="probe"), make_features(40)
    cut = torch.arange(40).split([13, 0, 27])
    parts = [evaluate(model, TensorSamples(samples.inputs(part), samples.labels[part])) for part in cut]
    whole = evaluate(model, samples)
    total = parts[0] + parts[1] + parts[2]
    assert torch.equal(total.confusion.matrix, whole.confusion.matrix)
    assert total.loss_sum == pytest.approx(whole.loss_sum, rel=1e-6)


def test_an_absent_class_is_not_predicted_but_counts_in_the_loss() -> None:
    samples = TensorSamples(10 * HEAD.weight.float(), torch.tensor([0, 0, 2]))  # the second looks like class 1
    model = TunedModel(HEAD, tune="probe")
    free = evaluate(model, samples)
    assert free.confusion.matrix.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    masked = evaluate(model, samples, present=torch.tensor([True, False, True]))
    assert masked.confusion.matrix[:, 1].tolist() == [0, 0, 0] and masked.confusion.num_examples == 3
    assert masked.loss_sum == free.loss_sum
