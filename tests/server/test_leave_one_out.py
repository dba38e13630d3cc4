"""Sites that keep nothing aside judge the ridge on the samples that it was made from, each left out of it."""

from dataclasses import replace
from pathlib import Path

import torch

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.data.clients import partitions, training_set
from fedstats_app.heads import solve_ridge
from fedstats_app.report.classifier import load
from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.wording import summary, warnings
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import FeatureStatistics
from tests.support.simulation import nodes_of, read_json, simulate


def test_as_many_are_right_as_by_heads_solved_without_each(tmp_path: Path) -> None:
    settings = {"num_clients": 3, "partitioner": "iid", "classes": "3", "partition.samples_per_class": 15}
    run = simulate(tmp_path, method="fedncm,fed3r", holdout_fraction=0.0, wire_dtype="float64", **settings)
    config = AppConfig.from_run_config(read_json(run, "config.json")["run_config"])
    results = RunRecord.read(run).results
    data = training_set(config.data)
    indices = torch.cat([torch.from_numpy(part) for part in partitions(config.data, config.partition, 0)]).numpy()
    blocks = FeatureReader(load(run, "fed3r").backbone).blocks(data, indices)
    features, labels = torch.cat([block for block, _ in blocks]), torch.from_numpy(data.labels[indices])
    ridge, right = results["methods"]["fed3r"]["parameters"]["ridge_lambda"], 0
    for i in range(len(labels)):
        others = torch.arange(len(labels)) != i
        head = solve_ridge(FeatureStatistics.from_features(features[others], labels[others], 3), ridge_lambda=ridge)
        right += int(head.predict(features[i : i + 1])) == int(labels[i])

    assert results["leave_one_out"] == {"method": "fed3r", "num_examples": 45, "accuracy": right / 45} and right > 15
    fitted = results["methods"]["fed3r"]["calibration"]
    assert fitted["fitted_on"].startswith("training samples of the sites")
    assert fitted["nll_after"] < fitted["nll_before"]
    assert results["methods"]["fedncm"]["calibration"]["fitted_on"] == "test samples of the server"
    assert "each left out" in load(run, "fed3r").calibrated_on


def test_without_test_samples_it_is_said_of_what_the_accuracy_is(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path / "sites", "abc", ("ant", "bee", "cat"))
    run = RunRecord.read(simulate(tmp_path, node_configs=nodes, method="fedncm,fed3r,fedcgs", holdout_fraction=0.0))

    left_out = run.results["leave_one_out"]

    assert run.taken == "fed3r" and left_out["num_examples"] == 72 and run.results["num_test_examples"] == 0
    share = f"{100 * left_out['accuracy']:.2f} % of 72 training"
    assert f"Take Fed3R: {share} samples, each left out of the head in turn" in run.results["advice"]["text"][0]
    assert f"Fed3R is right on {share} images of the sites, each left out of it in turn" in summary(run)
    tested = {"accuracy": 0.6, "accuracy_interval": [0.5, 0.7]}
    known = replace(run, results={**run.results, "methods": {"fed3r": {**run.methods["fed3r"], **tested}}})
    (warning,) = [line for line in warnings(known) if "near copies" in line]
    assert "right on 100.00 %, of test images on 50.0 to 70.0 %" in warning
    assert not [line for line in warnings(run) if "near copies" in line]
