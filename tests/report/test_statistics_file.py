"""Collected statistics on disk: to the last bit, for their owner's eyes only."""

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from fedstats_app.base.files import read_tensors, tensors_to_bytes
from fedstats_app.base.rank_rule import RankRule
from fedstats_app.report.statistics_file import (
    load_client_statistics,
    load_statistics,
    save_client_statistics,
    save_statistics,
)
from fedstats_app.statistics import ScatterSpec, StatisticsSpec
from fedstats_app.statistics.collected import CollectedStatistics, MergedClient, StatisticsSum
from tests.support.compare import same_bits

SPECS = {
    "rows and Gram matrix": StatisticsSpec(gram=True, means_per_class=3),
    "sums": StatisticsSpec(),
    "scatter": StatisticsSpec(scatter=ScatterSpec(RankRule.parse("90%"), "float32")),
}
NAMES = ("Łódź", "cat", "dog")


def make(name: str = "rows and Gram matrix", num_clients: int = 3) -> CollectedStatistics:
    generator, spec = torch.Generator().manual_seed(0), SPECS[name]
    total = StatisticsSum(3, 5, gram=spec.gram, keep_rows=name != "sums", scatter=spec.scatter is not None)
    for _ in range(num_clients):
        features = torch.randn(20, 5, generator=generator) + 1.0
        client = spec.from_features(features, torch.randint(0, 3, (20,), generator=generator), 3)
        if client.scatter is not None:
            client = client.with_scatter(client.scatter.truncated(2, torch.float32))
        total.add(client)
    clients = tuple(MergedClient(f"digest {k}", "17", 1000 + k) for k in range(num_clients))
    return CollectedStatistics(NAMES, spec, total, "5f" * 32, clients)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return save_statistics(tmp_path, make())


@pytest.mark.parametrize("name", SPECS)
def test_they_come_back_to_the_last_bit(tmp_path: Path, name: str) -> None:
    saved, file = make(name), save_statistics(tmp_path, make(name))
    loaded = load_statistics(file if name == "sums" else tmp_path)

    assert (loaded.class_names, loaded.spec, loaded.clients) == (saved.class_names, saved.spec, saved.clients)
    assert loaded.backbone_fingerprint == saved.backbone_fingerprint and loaded.num_examples == 60
    before, after = saved.total, loaded.total
    a, b = before.summed(), after.summed()
    assert same_bits(a.class_counts, b.class_counts) and same_bits(a.class_sums, b.class_sums)
    assert (a.gram is None) == (b.gram is None)
    assert a.gram is None or b.gram is None or same_bits(a.gram, b.gram)
    for kind in ("num_rows", "num_pairs", "keeps_rows", "has_scatter"):
        assert getattr(before, kind) == getattr(after, kind)
    if before.has_scatter:
        c, d = before.low_rank(), after.low_rank()
        assert same_bits(c.scatter, d.scatter) and c.left_out == d.left_out > 0.0
    if before.keeps_rows:
        assert same_bits(before.rows().class_sums, after.rows().class_sums)
        assert same_bits(before.rows().class_ids, after.rows().class_ids)


@pytest.mark.skipif(os.name == "nt", reason="permissions are those of POSIX")
def test_only_the_owner_can_read_it_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        modes.append(stat.S_IMODE(self.stat().st_mode))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    previous = os.umask(0o000)
    try:
        file = save_statistics(tmp_path, make())
    finally:
        os.umask(previous)
    assert modes == [0o600] and stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_header_says_that_it_is_sensitive_and_what_it_is(file: Path) -> None:
    with safe_open(str(file), framework="pt") as opened:
        header = opened.metadata()
    assert header["sensitive"].startswith("yes") and header["format"] == "fedstats-statistics-2"
    assert json.loads(header["class-names"]) == list(NAMES)


def test_the_same_statistics_give_the_same_bytes(tmp_path: Path, file: Path) -> None:
    (tmp_path / "again").mkdir()

    assert save_statistics(tmp_path / "again", load_statistics(file)).read_bytes() == file.read_bytes()


def forge(file: Path, tensor: str | None = None, value: torch.Tensor | None = None, **metadata: str) -> None:
    tensors, header = read_tensors(file)
    if tensor is not None:
        if value is None:
            del tensors[tensor]
        else:
            tensors[tensor] = value
    header |= {name.replace("_", "-"): text for name, text in metadata.items()}
    file.write_bytes(tensors_to_bytes(tensors, header, digest=True))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": "fedstats-head-1"}, "format must be 'fedstats-statistics-2'"),
        ({"specification": '{"gram": 1}'}, "gram must be of type bool"),
        ({"specification": "{}"}, "does not hold"),
        ({"class_names": '["a"]'}, "must have 1 classes"),
        ({"clients": '[{"client": 1}]'}, "does not hold collected statistics: TypeError"),
        ({"tensor": "class-sums"}, "KeyError"),
        ({"tensor": "class-sums", "value": torch.full((3, 5), float("nan"), dtype=torch.float64)}, "finite"),
        ({"tensor": "gram", "value": torch.zeros(3, dtype=torch.float64)}, "does not hold"),
        ({"tensor": "scatter", "value": torch.zeros(3, dtype=torch.float64)}, "scatter must be the upper triangle"),
        ({"tensor": "gram"}, "no Gram matrix"),
        ({"tensor": "left-out", "value": torch.tensor(-1.0, dtype=torch.float64)}, "at least 0"),
        ({"specification": '{"gram": false, "means-per-class": 1, "scatter": 1}'}, "type dict"),
        ({"tensor": "class-counts", "value": torch.tensor([1, 2, 3])}, "other counts"),
        ({"rows_and_pairs": "[1, 1]"}, "rows must be 1 of"),
    ],
)
def test_what_is_no_such_file_is_refused(file: Path, change: dict[str, object], reason: str) -> None:
    forge(file, **change)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=reason):
        load_statistics(file)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"class_names": '["cat", "wolf"]'}, "KeyError: 'wolf'"),
        ({"class_names": "[" * 100_000}, "RecursionError"),
        ({"tensor": "row-class-ids", "value": torch.tensor([-1])}, "IndexError"),
        ({"tensor": "row-class-ids", "value": torch.tensor([0.0])}, "RuntimeError"),
        ({"tensor": "row-counts"}, "KeyError: 'row-counts'"),
    ],
)
def test_what_holds_no_client_is_refused(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    one = SPECS["sums"].from_features(torch.ones(2, 5), torch.tensor([1, 1]), 3)
    file = save_client_statistics(tmp_path, 7, "digest", one, NAMES)
    forge(file, **change)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=f"does not hold a client's statistics: {reason}"):
        load_client_statistics(tmp_path, MergedClient("digest", "17", 7), NAMES)
