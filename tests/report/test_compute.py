import pytest

from fedstats_app.report.training_record import forward_passes, training_bytes
from fedstats_app.training.trainers import TRAINERS
from tests.support.golden import published_costs

_SQUEEZENET, _RESNET18 = 722_496, 11_176_512
_PROMPTS = 20 * 768
# Rounds, clients a round and trained parameters behind every row of training; heads have no bias.
_TRAININGS = {
    ("Fed-LP", "CIFAR-100"): (200, 30, 100 * 512),
    ("Fed-LP", "ImageNet-R"): (200, 30, 200 * 512),
    ("Fed-LP", "CUB200"): (200, 30, 200 * 512),
    ("Fed-LP", "Cars"): (200, 30, 196 * 512),
    ("Fed-LP", "iNat-120K"): (5000, 2782, 1203 * 512),
    ("FedAvg-PT", "CIFAR-100"): (120, 10, _PROMPTS + 100 * 768),
    ("FedAvg-PT", "ImageNet-R"): (120, 10, _PROMPTS + 200 * 768),
    ("FedAvg-PT", "CUB200"): (120, 10, _PROMPTS + 200 * 768),
    ("FedAvg-PT", "Cars"): (120, 10, _PROMPTS + 196 * 768),
}
_FINE_TUNINGS = {
    ("CIFAR-10", "SqueezeNet 1.1"): _SQUEEZENET + 10 * 512,
    ("CIFAR-100", "SqueezeNet 1.1"): _SQUEEZENET + 100 * 512,
    ("CIFAR-100", "ResNet-18"): _RESNET18 + 100 * 512,
    ("ImageNet-R", "ResNet-18"): _RESNET18 + 200 * 512,
}


def test_bytes_of_training_are_those_of_the_papers_tables() -> None:
    checked = 0
    for row in published_costs():
        if row["what"] == "FedAvg-FT 200r":
            rounds, clients, parameters = 200, 30, _FINE_TUNINGS[row["dataset"], row["backbone"]]
        elif (row["what"], row["dataset"]) in _TRAININGS:
            rounds, clients, parameters = _TRAININGS[row["what"], row["dataset"]]
        else:
            continue
        computed = training_bytes(num_rounds=rounds, clients_per_round=clients, num_parameters=parameters)
        assert f"{computed / 1e6:.4f}" == row["computed_MB"], row
        checked += 1
    assert checked == len(_TRAININGS) + len(_FINE_TUNINGS)


@pytest.mark.parametrize(
    ("rounds", "numbers", "gigabytes"),
    [
        (200, 10 * 512, "0.82"),  # CIFAR-10
        (1000, 10 * 512, "4.10"),  # CIFAR-10 at 32 pixels, EuroSAT
        (500, 102 * 513, "20.93"),  # Flowers, with bias
        (500, 102 * 512, "20.89"),
        (1500, 200 * 512, "122.88"),  # CUB
        (2500, 196 * 512, "200.70"),  # Cars
    ],
)
def test_bytes_of_linear_probing_are_the_theses(rounds: int, numbers: int, gigabytes: str) -> None:
    computed = training_bytes(num_rounds=rounds, clients_per_round=100, num_parameters=numbers)
    assert f"{computed / 1e9:.2f}" == gigabytes


@pytest.mark.parametrize(("classes", "gigabytes"), [(10, "0.0041"), (102, "0.0418"), (200, "0.0819"), (196, "0.0803")])
def test_the_thesis_counts_fedncm_as_a_round_of_dense_means(classes: int, gigabytes: str) -> None:
    computed = training_bytes(num_rounds=1, clients_per_round=100, num_parameters=classes * 512)
    assert f"{computed / 1e9:.4f}" == gigabytes


def test_forward_passes_are_the_theses() -> None:
    # CIFAR-10, 50,000 samples, 200 rounds of one local epoch; the thesis prints 1e6 for the probe by mistake.
    sizes = {"num_examples": 50_000, "num_rounds": 200, "repeats": 1}
    passes = {name: forward_passes(trainer.passes, **sizes) for name, trainer in TRAINERS.items()}
    assert passes["full"] == passes["features"] == 30_000_000
    assert passes["probe"] == 10_000_000
    assert forward_passes(1, num_examples=50_000) == 50_000  # the closed form
    assert forward_passes(TRAINERS["full"].passes, num_examples=800, num_rounds=3, repeats=5) == 36_000
