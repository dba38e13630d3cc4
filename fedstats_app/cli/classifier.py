"""The classifier that a command's arguments name."""

from __future__ import annotations

import argparse

from fedstats_app.backbones.weights import WeightsError
from fedstats_app.cli.errors import CommandError
from fedstats_app.report.classifier import Classifier, load


def load_classifier(arguments: argparse.Namespace) -> Classifier:
    """Load the head and its network.

    Raises
    ------
    CommandError
        If the network's weights or a library that it needs are missing.
    FileNotFoundError, ValueError
        As `fedstats_app.load`.
    """
    try:
        return load(
            arguments.run_folder,
            arguments.method,
            weights=arguments.weights,
            device=arguments.device,
            batch_size=arguments.batch_size,
            engine=arguments.engine,
        )
    except (WeightsError, ModuleNotFoundError) as error:
        raise CommandError(str(error)) from error


def calibration_note(classifier: Classifier) -> str:
    """Say in a line whether probabilities can be taken at their word."""
    if classifier.calibrated_on:
        return f"probabilities calibrated on {classifier.calibrated_on} (temperature {classifier.temperature:.4g})"
    return "probabilities UNCALIBRATED: this head was saved without a calibration, only the order of classes counts"
