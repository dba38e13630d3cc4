"""`fedstats release` and `merge`: a federation whose sites hand on files instead of answering over a network."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.backbones.weights import WeightsError
from fedstats_app.base.files import to_json
from fedstats_app.base.option import ConfigError
from fedstats_app.cli import COULD_NOT_WORK, CommandError
from fedstats_app.cli.settings import read_in_turn, read_node_config
from fedstats_app.cli.terminal import paragraph, printable, told
from fedstats_app.data.clients import data_spec
from fedstats_app.grid.class_lists import ClassList, align_class_lists
from fedstats_app.methods import METHODS, display_name
from fedstats_app.privacy import says_much_about_samples
from fedstats_app.privacy.node_policy import SAMPLES_PER_DIRECTION
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.simulation import UnknownFlower, make_release, run_on
from fedstats_app.statistics import merge_specs
from fedstats_app.wire import RejectedReply
from fedstats_app.wire.release import Release, in_words, read_release

_CLASSES_SHOWN = 12


def release(arguments: argparse.Namespace) -> int:
    """Make a release of a folder of data, or show what is in one.

    Raises
    ------
    CommandError, ValueError
        If nothing can be released, or a file is none.
    """
    path = arguments.show or arguments.out
    if not arguments.show:
        if not (arguments.data and path):
            raise CommandError(
                "must say whose data and which file (DATA --out FILE), or which file to show (--show FILE)"
            )
        _make_from(arguments, Path(path).expanduser())
    made = read_release(path)
    print(to_json(_document(made)) if arguments.json else _in_plain_words(path, made))
    return 0


def _make_from(arguments: argparse.Namespace, out: Path) -> None:
    try:
        node_config = read_node_config(arguments.node_config)
        name = arguments.name or out.stem
        node_config = {"client-name": name, **node_config, "data-path": _absolute(arguments.data)}
        with told("release") as progress, progress.doing("reading the data"):
            make_release(node_config, _given(arguments), out)
    except (ConfigError, UnknownFlower, WeightsError, ModuleNotFoundError, RejectedReply) as error:
        raise CommandError(str(error)) from error


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read what the arguments say of the run-config, the options with a name of their own last."""
    config = read_in_turn(arguments.run_config)
    return {**config, **{key: value for key in ("method", "backbone") if (value := getattr(arguments, key))}}


def _document(release: Release) -> dict[str, object]:
    received = release.received
    return {
        "name": release.info.client_name,
        "backbone": release.backbone,
        "backbone_fingerprint": release.request.backbone_fingerprint,
        "class_counts": dict(zip(release.request.class_names, _counts(release), strict=True)),
        "num_suppressed_classes": received.num_suppressed_classes,
        "num_unreadable": received.num_unreadable,
        "statistics": in_words(release.request.spec),
        "wire_dtype": release.request.wire_dtype,
        "methods": _methods([release]),
        "digest": release.digest,
    }


def _counts(release: Release) -> list[int]:
    statistics = release.received.statistics
    targets = statistics.targets
    if targets is not None:
        return [int(n) for n in (targets.sums if targets.kind == ("labels",) else targets.known).tolist()]
    counts: list[int] = statistics.rows.class_counts().tolist()
    return counts


def _methods(releases: Sequence[Release]) -> list[str]:
    """List the methods, with their defaults, that all of some releases can be solved by."""
    configured = AppConfig().configured_methods
    targets = releases[0].info.targets
    return [
        name
        for name in METHODS
        if all(release.covers(configured[name].specification) for release in releases)
        and not (targets and METHODS[name].cannot_take(targets))
    ]


def _in_plain_words(path: str, release: Release) -> str:
    """Say what a release holds, what it does not, and how much of single samples it gives away."""
    received, size = release.received, Path(path).expanduser().stat().st_size
    counted = zip(release.request.class_names, _counts(release), strict=True)
    classes = [f"{printable(name)} {count}" for name, count in counted]
    more = len(classes) - _CLASSES_SHOWN
    solvable = ", ".join(map(display_name, _methods([release]))) or "no method with its default settings"
    lines = [
        f"{path}: {size / 1e6:,.3f} MB, name {printable(release.info.client_name)!r}",
        f"network: {printable(release.backbone)}, fingerprint {release.request.backbone_fingerprint[:16]}",
        f"samples: {received.num_examples:,} of {len(classes)} {release.info.targets or 'classes'}: "
        + ", ".join(classes[:_CLASSES_SHOWN])
        + (f", and {more} more" if more > 0 else ""),
        f"held back: {received.num_suppressed_classes} classes with too few samples, and {received.num_unreadable} "
        "unreadable samples",
        f"statistics: {in_words(release.request.spec)}; enough for {solvable}",
        *_given_away(release),
        f"not in it: images, texts, file names, code; digest {release.digest[:16]}",
    ]
    return "\n".join(paragraph(line, rest="  ") for line in lines)


def _given_away(release: Release) -> list[str]:
    """Say how much of single samples is in means, Gram matrices and directions."""
    client, spec = release.received.statistics, release.request.spec
    number = release.received.num_examples
    groups = [client.rows.counts]
    if (targets := client.targets) is not None:
        groups += [targets.known, number - targets.known]
        if targets.kind == ("labels",):
            groups += [targets.sums.long(), targets.known - targets.sums.long()]
    fewest = min(count for group in groups for count in group.tolist() if count)
    lines = [f"of single samples: the mean of the fewest is of {fewest}; the fewer, the closer it is to each of them"]
    if not (spec.gram or spec.sends_scatter):
        return lines
    dim = client.rows.feature_dim
    directions = 0 if client.scatter is None else len(client.scatter)
    whole = spec.gram and not client.completed
    name = "Gram matrix" if whole else f"{directions} directions"
    how_much = "little, since these are 2 d or more"
    if says_much_about_samples(number, dim):
        how_much = "MUCH, since these are fewer than 2 d"
        if not whole and SAMPLES_PER_DIRECTION * directions <= number - len(client.rows):
            # Measured with `python -m research.benchmarks.separation --sites 3x16 3x64 --seeds 2`.
            how_much = "enough to pick 20 to 54 % of them out of 8,000 images"
    return [*lines, f"of single samples: the {name} of {number:,} samples in d = {dim:,} dimensions says {how_much}"]


def merge(arguments: argparse.Namespace) -> int:
    """Run the app on releases as it would on the nodes of their sites, into a run folder of this name.

    Raises
    ------
    CommandError, ValueError
        If a file is no release, or does not fit the others or what is asked for; it is named.
    """
    out = Path(arguments.out).expanduser().absolute()
    given = _given(arguments)
    if out.exists() and "resume" not in given:
        raise CommandError(f"--out must be a new folder, {out} is there already")
    found = {path: read_release(path) for path in arguments.releases}
    releases = dict(sorted(found.items(), key=lambda entry: (entry[1].info.client_name, entry[1].digest)))
    try:
        config = {**_usual(arguments.test, list(releases.values()), str(out.parent)), **given}
        _refuse_what_does_not_fit(releases, AppConfig.from_run_config(config))
        nodes = [{"data-path": f"release:{_absolute(path)}"} for path in releases]
        run_on(nodes, config, name=out.name)
    except (ConfigError, UnknownFlower, WeightsError, ModuleNotFoundError) as error:
        raise CommandError(str(error)) from error
    except (CommandError, KeyboardInterrupt):
        raise
    except Exception:  # noqa: BLE001  # said in the last line, and in the run folder
        return COULD_NOT_WORK
    return 0


def _usual(test: str, releases: Sequence[Release], output_dir: str) -> dict[str, Any]:
    """Make the settings of the run that the user need not give: what can be solved from all files."""
    usual: dict[str, Any] = {
        "method": ",".join(_methods(releases)) or "all",
        "wire-dtype": releases[0].request.wire_dtype,
        "save-statistics": "clients",  # the files are here anyway, and a site can be taken out again
        "min-clients": len(releases),
        "settle-seconds": 0.0,
        "output-dir": output_dir,
    }
    if test:
        usual["test-dataset"] = data_spec(_absolute(test))
    return usual


def _refuse_what_does_not_fit(releases: Mapping[str, Release], config: AppConfig) -> None:
    """Refuse files that are of one site, or of another network, other classes or too few statistics, by name."""
    problems = []
    for shared, values in (
        ("the very same statistics", [release.digest for release in releases.values()]),
        ("a site of the same name", [release.info.client_name for release in releases.values()]),
    ):
        for value in sorted({value for value in values if value and values.count(value) > 1}):
            same = [path for path, other in zip(releases, values, strict=True) if other == value]
            problems.append(f"{' and '.join(same)} are of {shared}, which would count twice")
    backbone = loaded_backbone(config.backbone_for(own_data=True), NodeConfig().engine_root(config.cache))
    lists = {place: ClassList(release.request.class_names) for place, release in enumerate(releases.values())}
    _, conflicts = align_class_lists(lists)
    spec = merge_specs(method.specification for method in config.configured_methods.values())
    for place, (path, release) in enumerate(releases.items()):
        if release.request.backbone_fingerprint != backbone.fingerprint:
            problems.append(
                f"{path} is of network {printable(release.backbone)}, fingerprint "
                f"{release.request.backbone_fingerprint[:16]}; this run has {backbone.name}, fingerprint "
                f"{backbone.fingerprint[:16]} (--backbone)"
            )
        if (dtype := release.request.wire_dtype) != config.federation.wire_dtype:
            problems.append(f"{path} is in {dtype}, this run in {config.federation.wire_dtype} (wire-dtype)")
        if place in conflicts:
            reason = conflicts[place]
            for number, other in enumerate(releases):
                reason = reason.replace(f"node {number} has", f"{other} has")
            problems.append(f"{path}: {reason}")
        if not release.covers(spec):
            has = in_words(release.request.spec)
            problems.append(f"{path} has {has}; for this run's methods it lacks: {in_words(spec)} (--method)")
    if problems:
        raise CommandError("\n".join(problems))
