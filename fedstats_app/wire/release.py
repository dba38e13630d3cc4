"""A release: what a site says of itself and of its statistics, as a file that its owner makes and hands on.

A safetensors file of the arrays of a reply to ``query.statistics``, each under ``statistics.KEY``, with the request,
the reply's other records and the site's answer to ``query.clients`` as JSON in its header. There is no code in it.
It is checked on reading as the reply that it holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedstats_app.base.files import read_tensors, write_tensors
from fedstats_app.methods import Need
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, StatisticsSpec, client_digest
from fedstats_app.wire.arrays import to_array, to_tensors
from fedstats_app.wire.reading import Malformed, RejectedRequest, check_keys, clean_reason, from_record
from fedstats_app.wire.serving import NodeInfo, node_info_of, node_info_record
from fedstats_app.wire.statistics import ReceivedStatistics, StatisticsRequest, statistics_of
from fedstats_app.wire.statistics_records import statistics_record

RELEASE_FORMAT = "fedstats-release-2"
SENSITIVE = (
    "yes: class counts and sums of one site's features, from which features, and images like the site's, can be "
    "recovered the better, the fewer samples a class has"
)
_RECORDS = {"node": ConfigRecord, "request": ConfigRecord, "metrics": MetricRecord, "about": ConfigRecord}
_READABLE_BY_OWNER = 0o600


@dataclass(frozen=True, eq=False)
class Release:
    """Content of a release file, checked.

    Attributes
    ----------
    info : NodeInfo
        Of the site: its classes and its name.
    request : StatisticsRequest
        That was answered, about these classes in the order of their names.
    backbone : str
        The network's name.
    content, received
        The answer, and the same as read.
    """

    info: NodeInfo
    request: StatisticsRequest
    backbone: str
    content: RecordDict
    received: ReceivedStatistics

    @property
    def digest(self) -> str:
        """Digest that identifies the statistics, as in a run's list of clients."""
        return client_digest(self.received.statistics)

    @property
    def fewest(self) -> int:
        """Samples of the smallest class, or of the fewest positive, negative or unknown ones of a label."""
        statistics = self.received.statistics
        found, targets = statistics.rows.counts, statistics.targets
        if targets is not None:
            parts = [found.sum() - targets.known, targets.known]
            if targets.kind == ("labels",):
                positive = targets.sums.long()
                parts += [positive, targets.known - positive]
            found = torch.cat([found, *parts])
        return int(found[found > 0].min())

    def covers(self, spec: StatisticsSpec) -> bool:
        """Return whether the file has what a specification asks for."""
        own = self.request.spec
        same = (own.means_per_class, own.fraction_bits) == (spec.means_per_class, spec.fraction_bits)
        return same and own.covers(spec)

    def answer(self, request: StatisticsRequest) -> RecordDict:
        """Answer a request from the file, with classes numbered as it numbers them.

        All samples are in the answer, also where the request leaves some for evaluation: there is nothing here to
        evaluate on.

        Raises
        ------
        RejectedRequest
            If the file does not hold what is asked for; the message says what.
        """
        own, names = self.request, request.class_names or self.request.class_names
        wanted, has = request.backbone_fingerprint, own.backbone_fingerprint
        if wanted not in ("", has):
            raise RejectedRequest(
                f"this release is of backbone {self.backbone} (fingerprint {has[:16]}), "
                f"the request's fingerprint is {wanted[:16]}"
            )
        if request.wire_dtype != own.wire_dtype:
            raise RejectedRequest(
                f"this release is in {own.wire_dtype} (wire-dtype), asked for was {request.wire_dtype}"
            )
        position = {name: number for number, name in enumerate(names)}
        missing = [name for name in own.class_names if name not in position]
        if missing or request.num_classes != len(names):
            raise RejectedRequest(
                f"this release has {own.num_classes} classes, {missing[:3]} among them; the request has "
                f"{request.num_classes}"
            )
        ids = torch.tensor([position[name] for name in own.class_names], dtype=torch.int64)
        spec = request.spec
        if spec.targets != own.spec.targets:
            kinds = (spec.targets or "one class", own.spec.targets or "one class")
            raise RejectedRequest(f"asked for was {kinds[0]} a sample, this release has {kinds[1]}")
        if not self.covers(spec):
            raise RejectedRequest(f"{in_words(spec)}: not in this release, which has {in_words(own.spec)}")
        record = self._record(spec, ids, request.num_classes)
        metrics = MetricRecord(dict(self.content.metric_records["metrics"]))
        return RecordDict({"statistics": record, "metrics": metrics, "about": self.content["about"]})

    def _record(self, spec: StatisticsSpec, ids: Tensor, num_classes: int) -> ArrayRecord:
        client, arrays, own = self.received.statistics, self.content.array_records["statistics"], self.request.spec
        class_ids = ids[client.rows.class_ids]
        order = torch.argsort(class_ids, stable=True)
        completed = client.completed and (spec.gram or spec.sends_scatter)
        if spec.stand_in != own.stand_in if completed else spec.sends_scatter and not own.sends_scatter:
            sums = client.rows.class_sums[order]
            rows = ClassMeanRows(class_ids[order], client.rows.counts[order], num_classes=num_classes, class_sums=sums)
            within = None if completed else client.within
            scatter, targets = client.scatter if completed else None, client.targets
            targets = targets if targets is None else targets.placed(ids, num_classes)
            kept = ClientStatistics(rows, scatter=scatter, within=within, targets=targets)
            return statistics_record(kept, spec, self.request.wire_dtype, self.received.other_bytes)
        # The arrays as they are: those of rows, c..., alone or with the one kind of scatter that is there.
        whole = spec.gram or spec.sends_scatter
        record = ArrayRecord({key: array for key, array in arrays.items() if whole or key[0] in "ct"})
        of_rows = {
            **{key: tensor for key, tensor in to_tensors(record).items() if key[0] == "c"},
            "class-ids": class_ids,
        }
        for key, tensor in of_rows.items():
            record[key] = to_array(tensor[order])
        if spec.targets:
            of_targets = {key: tensor for key, tensor in to_tensors(record).items() if key[0] == "t"}
            places = ids[of_targets["target-ids"]]
            order = torch.argsort(places)
            for key, tensor in {**of_targets, "target-ids": places}.items():
                record[key] = to_array(tensor[order])
        return record


def in_words(spec: StatisticsSpec) -> str:
    """Say what a specification asks for."""
    grid = (f"exact to 2^-{spec.fraction_bits} (exact-sums)",) if spec.fraction_bits else ()
    return ", ".join(("class means", *(need.value for need in Need.of(spec)), *grid))


def write_release(path: Path, info: NodeInfo, request: StatisticsRequest, content: RecordDict, backbone: str) -> None:
    """Write a release in one step, readable by its owner only; the same answer gives the same bytes.

    It holds what the site says of itself, the request that was answered, with the backbone's fingerprint, the content
    of the answer and the network's name.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    records = {**content, "node": node_info_record(info), "request": request.to_content()["request"]}
    tensors = {
        f"{name}.{key}": tensor
        for name, record in content.array_records.items()
        for key, tensor in to_tensors(record).items()
    }
    texts = {name: json.dumps(dict(records[name]), sort_keys=True) for name in _RECORDS}
    metadata = {"format": RELEASE_FORMAT, "sensitive": SENSITIVE, "backbone": backbone, **texts}
    write_tensors(path, tensors, metadata, mode=_READABLE_BY_OWNER)


def read_release(path: str | Path) -> Release:
    """Read an untrusted release.

    Raises
    ------
    ValueError
        If it is none, is damaged, or holds what no site's reply may hold; the message says what, and of which file.
    """
    path = Path(path).expanduser()
    if not path.is_file():  # not opened to find out: a pipe would be waited for
        raise ValueError(f"{path}: must be a file that `fedstats release` made, got none")
    tensors, metadata = read_tensors(path)
    try:
        return _release(tensors, metadata)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: no release that can be used: {clean_reason(error)}") from error


def _release(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Release:
    if metadata.get("format") != RELEASE_FORMAT:
        raise Malformed(f"format: must be {RELEASE_FORMAT!r}, got {metadata.get('format')!r:.60}")
    check_keys("header", metadata, {"format", "sensitive", "backbone", *_RECORDS})
    content = RecordDict()
    for name, kind in _RECORDS.items():
        values = json.loads(metadata[name])
        if not isinstance(values, dict):
            raise Malformed(f"{name}: must be an object, got {metadata[name]!r:.60}")
        content[name] = kind(values)
    info = node_info_of(content.config_records["node"])
    request = from_record(StatisticsRequest, content, "request", ConfigRecord)
    if not request.class_names or request.class_names != tuple(sorted(info.class_names)) or request.holdout:
        raise Malformed("request: must be about everything of the site's classes, in the order of their names")
    if not request.backbone_fingerprint:
        raise Malformed("backbone-fingerprint: must be that of the network, got none")
    answer = RecordDict({name: content[name] for name in ("metrics", "about")})
    for name, tensor in tensors.items():
        record, _, key = name.partition(".")
        if not isinstance(answer.setdefault(record, ArrayRecord()), ArrayRecord):
            raise Malformed(f"{name}: must be an array of statistics")
        answer.array_records[record][key] = to_array(tensor)
    received = statistics_of(answer, request)
    if not received.num_examples:
        raise Malformed("statistics: must be of at least one sample")
    backbone = clean_reason(metadata["backbone"])
    return Release(info, request, backbone, answer, received)
