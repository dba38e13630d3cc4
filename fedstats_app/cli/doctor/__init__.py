"""`fedstats doctor`: whether this machine is ready for a run, and what a run would cost."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedstats_app.cli.finding import Finding, report
from fedstats_app.cli.local_superlink import check_local_superlink
from fedstats_app.cli.progress import told
from fedstats_app.cli.settings import read_settings
from fedstats_app.grid.progress import Step
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig

__all__ = ["Finding", "examine", "run"]


def run(arguments: argparse.Namespace) -> int:
    """Print every finding as soon as it is there; 1 if one is a FAIL.

    Raises
    ------
    ValueError
        If the SuperLink's address is none.
    """
    if arguments.superlink:
        from fedstats_app.cli.doctor.superlink import parse_address

        parse_address(arguments.superlink)
    with told("doctor") as progress, progress.doing("checking") as step:
        return 1 if report(examine(arguments, step), as_json=arguments.json) else 0


def examine(arguments: argparse.Namespace, step: Step) -> Iterator[Finding]:
    """Do all checks that the arguments allow, the quick ones first.

    Parameters
    ----------
    arguments : argparse.Namespace
        Of `fedstats doctor`.
    step : Step
        Is told what is being checked.

    Yields
    ------
    Finding
        One or several per check. Checks that need what an earlier one did not find are left out.
    """
    from fedstats_app.cli.doctor.versions import check_versions

    step.at(0, "checking versions")
    yield from check_versions(simulation=not (arguments.data_path or arguments.superlink))
    step.at(0, "checking certificates and the SuperLink")
    yield from _network(arguments)
    if not (arguments.data_path or arguments.superlink or arguments.connection):
        yield check_local_superlink()
    config, finding = _settings(arguments.run_config)
    yield finding
    if config is not None:
        yield from _work(config, _node(arguments), arguments.backbone_weights, step)


def _network(arguments: argparse.Namespace) -> Iterator[Finding]:
    if arguments.root_certificates or arguments.certificate:
        yield from _certificate_files(arguments)
    if arguments.superlink:
        from fedstats_app.cli.doctor.certificates import read_certificates
        from fedstats_app.cli.doctor.superlink import check_superlink

        roots = arguments.root_certificates or ""
        try:
            authorities = read_certificates(roots) if roots else []
        except (OSError, ValueError):
            return  # said already
        yield from check_superlink(arguments.superlink, roots, authorities, arguments.timeout)
    if arguments.connection:
        from fedstats_app.cli.doctor.superlink import check_supernodes

        yield check_supernodes(arguments.connection)


def _certificate_files(arguments: argparse.Namespace) -> Iterator[Finding]:
    from fedstats_app.cli.doctor.certificates import check_dates, check_pair, read_certificates
    from fedstats_app.cli.doctor.superlink import parse_address

    found: dict[str, list[Any]] = {}
    for what, path in (("root certificate", arguments.root_certificates), ("certificate", arguments.certificate)):
        if not path:
            continue
        try:
            found[what] = read_certificates(path)
        except (OSError, ValueError) as error:
            yield Finding(what, "FAIL", str(error), "give a PEM file, such as the ca.crt that signed the SuperLink's")
        else:
            for certificate in found[what]:
                yield check_dates(what, certificate)
    if len(found) == 2:
        host = parse_address(arguments.superlink)[0] if arguments.superlink else None
        yield from check_pair(found["certificate"][0], found["root certificate"], host)


def _settings(given: list[str]) -> tuple[AppConfig | None, Finding]:
    if not given:
        return AppConfig(), Finding("run-config", "ok", "the defaults")
    named = " ".join(given)
    try:
        settings = read_settings(given)
        return AppConfig.from_run_config(settings), Finding("run-config", "ok", f"{named}: {len(settings)} keys")
    except ValueError as error:
        advice = "correct it; all keys are in pyproject.toml, and `fedstats check` says more"
        return None, Finding("run-config", "FAIL", f"{named}: {error}", advice)


def _node(arguments: argparse.Namespace) -> NodeConfig | None:
    if not arguments.data_path:
        return None
    return NodeConfig.from_node_config({"data-path": str(Path(arguments.data_path).expanduser().absolute())})


def _work(config: AppConfig, node: NodeConfig | None, weights: str, step: Step) -> Iterator[Finding]:
    """Check what a run works with: network, data, disk; then what it costs."""
    from fedstats_app.cli.doctor.cost import check_cost, check_disk, sizes_of
    from fedstats_app.cli.doctor.samples import check_class_counts, check_kind, check_samples, load_data
    from fedstats_app.cli.doctor.weights import check_weights

    own_data = node is not None
    step.at(0, f"loading backbone {config.backbone.backbone}")
    finding, backbone = check_weights(config, own_data=own_data, weights=weights)
    yield finding
    step.at(0, "reading the list of samples")
    finding, dataset = load_data(config, node)
    yield finding
    sizes = None
    if dataset is not None:
        step.at(0, f"reading some of {len(dataset):,} {dataset.kind}s")
        yield check_samples(dataset)
        if backbone is not None:
            yield from check_kind(dataset, backbone)
        if node is not None:
            yield from check_class_counts(dataset, config, node)
        step.at(0, "counting samples by client")
        try:
            sizes = sizes_of(dataset, config, own_data=own_data)
        except ValueError as error:
            yield Finding("partitions", "FAIL", str(error), "change num-clients or the partitioner")
    yield from check_disk(config, node, sizes, backbone.feature_dim if backbone else 0)
    if backbone is not None and dataset is not None and sizes is not None and dataset.kind == backbone.kind:
        step.at(0, "timing the network")
        yield from check_cost(sizes, backbone, config, dataset, own_data=own_data)
