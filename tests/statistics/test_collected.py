"""Sums that are put aside and taken up again, under other class numbers, and who is in them."""

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.statistics import ClassMeanRows, ClientStatistics, StatisticsSpec, client_digest
from fedstats_app.statistics.collected import CollectedStatistics, MergedClient, StatisticsSum, sum_without
from tests.support.compare import same_bits
from tests.support.draws import Sample, samples

GRAM = StatisticsSpec(gram=True, means_per_class=2)


def folded(clients: list[ClientStatistics], into: StatisticsSum) -> StatisticsSum:
    for client in clients:
        into.add(client)
    return into


def empty_sum(sample: Sample) -> StatisticsSum:
    return StatisticsSum(sample.num_classes, sample.features.shape[1], gram=True, keep_rows=True)


def clients_of(sample: Sample) -> list[ClientStatistics]:
    return [GRAM.from_features(*part, sample.num_classes) for part in sample.parts]


def same(one: StatisticsSum, other: StatisticsSum) -> bool:
    a, b = one.summed(), other.summed()
    assert a.gram is not None and b.gram is not None
    return (
        (one.num_rows, one.num_pairs) == (other.num_rows, other.num_pairs)
        and same_bits(a.class_counts, b.class_counts)
        and same_bits(a.class_sums, b.class_sums)
        and same_bits(a.gram, b.gram)
        and same_bits(one.rows().class_ids, other.rows().class_ids)
        and same_bits(one.rows().class_sums, other.rows().class_sums)
    )


@given(samples(), st.integers(0, 6))
def test_a_sum_taken_up_again_goes_on_to_the_last_bit(sample: Sample, cut: int) -> None:
    clients = clients_of(sample)
    first = folded(clients[:cut], empty_sum(sample))

    resumed = StatisticsSum.resumed(first.summed(), first.rows(), num_rows=first.num_rows, num_pairs=first.num_pairs)

    assert same(folded(clients[cut:], resumed), folded(clients, empty_sum(sample)))


@given(samples(), st.integers(0, 2**12))
def test_rows_are_those_of_the_clients_in_their_order_however_many_are_stacked_at_once(
    sample: Sample, size: int
) -> None:
    clients = clients_of(sample)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedstats_app.statistics.collected.BYTES_PER_PART", size)
        rows = folded(clients, empty_sum(sample)).rows()
    assert same_bits(rows.class_ids, torch.cat([client.rows.class_ids for client in clients]))
    assert same_bits(rows.counts, torch.cat([client.rows.counts for client in clients]))
    assert same_bits(rows.class_sums, torch.cat([client.rows.class_sums for client in clients]))


@given(samples(), st.integers(0, 6))
def test_clients_leave_together_as_one_after_another(sample: Sample, number: int) -> None:
    clients = clients_of(sample)
    together = total = folded(clients, empty_sum(sample))
    for client in clients[:number]:
        total = sum_without(total, client)
    assert same(sum_without(together, *clients[:number]), total)


def test_what_is_made_of_a_sum_is_made_again_when_a_client_is_added() -> None:
    total = StatisticsSum(2, 2, gram=False, keep_rows=True)
    client = ClientStatistics(ClassMeanRows.from_features(torch.eye(2), torch.tensor([0, 1]), 2))
    found = []
    for _ in range(2):
        total.add(client)
        found += [total.once("samples", lambda: total.num_examples) for _ in range(2)]
    assert found == [2, 2, 4, 4]


@given(samples(), st.randoms())
def test_other_class_numbers_change_nothing_else(sample: Sample, draw: object) -> None:
    more = sample.num_classes + 2
    new_ids = list(range(more))
    draw.shuffle(new_ids)  # type: ignore[attr-defined]
    new = torch.tensor(new_ids[: sample.num_classes])
    labels = new[sample.labels]
    renumbered = [
        GRAM.from_features(sample.features[mine], labels[mine], more)
        for mine in (sample.clients == client for client in range(sample.num_clients))
    ]

    found = folded(clients_of(sample), empty_sum(sample)).renumbered(new, more).summed()

    expected = folded(renumbered, StatisticsSum(more, sample.features.shape[1], gram=True, keep_rows=True)).summed()
    assert same_bits(found.class_counts, expected.class_counts)
    assert torch.allclose(found.class_sums, expected.class_sums, rtol=1e-12, atol=1e-12 * sample.scale)


def test_rows_that_are_not_of_the_sums_are_refused() -> None:
    total = StatisticsSum(2, 3, gram=False, keep_rows=True)
    total.add(ClientStatistics(ClassMeanRows(torch.tensor([0]), torch.tensor([4]), torch.ones(1, 3), 2)))
    others = ClassMeanRows(torch.tensor([1]), torch.tensor([4]), torch.ones(1, 3), 2)

    with pytest.raises(ValueError, match="got other counts"):
        StatisticsSum.resumed(total.summed(), others, num_rows=1, num_pairs=1)
    with pytest.raises(ValueError, match="rows must be 2 of"):
        StatisticsSum.resumed(total.summed(), total.rows(), num_rows=2, num_pairs=1)


def collected(class_names: tuple[str, ...]) -> CollectedStatistics:
    total = StatisticsSum(len(class_names), 2, gram=False, keep_rows=False)
    labels = torch.arange(len(class_names)).repeat_interleave(torch.arange(1, len(class_names) + 1))
    total.add(StatisticsSpec().from_features(torch.ones(len(labels), 2), labels, len(class_names)))
    return CollectedStatistics(class_names, StatisticsSpec(), total, "f", (MergedClient("d", "r", 1),))


def test_classes_are_matched_by_name() -> None:
    again = collected(("cat", "dog")).with_class_names(("ant", "dog", "cat"))

    assert again.class_names == ("ant", "dog", "cat")
    assert again.total.summed().class_counts.tolist() == [0, 2, 1] and again.num_examples == 3
    with pytest.raises(ValueError, match=r"must include all 2 old ones, \['dog'\] are not"):
        collected(("cat", "dog")).with_class_names(("ant", "cat"))


def test_parts_that_do_not_belong_together_are_refused() -> None:
    good = collected(("cat", "dog"))
    for names, spec, reason in (
        (("cat", "cat"), good.spec, "must differ"),
        (("cat",), good.spec, "must have 1 classes"),
        (good.class_names, GRAM, "a Gram matrix and no factor"),
    ):
        with pytest.raises(ValueError, match=reason):
            CollectedStatistics(names, spec, good.total, "f", ())


def digest(features: torch.Tensor, labels: list[int], num_classes: int = 4, **options: object) -> str:
    spec = StatisticsSpec(gram=True)
    return client_digest(spec.from_features(features, torch.tensor(labels, dtype=torch.int64), num_classes))


def test_a_client_is_known_by_its_statistics() -> None:
    features = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    own = digest(features, [0, 0, 1, 1, 1, 2])

    assert own == digest(features, [3, 3, 0, 0, 0, 2]) == digest(features, [0, 0, 1, 1, 1, 2], 9)
    assert own != digest(features, [0, 1, 1, 1, 1, 2]) and own != digest(features[:5], [0, 0, 1, 1, 1])
    changed = features.clone()
    changed[0, 0] += 1e-3
    assert own != digest(changed, [0, 0, 1, 1, 1, 2])
    assert len(own) == 64 and digest(features[:0], []) == ""


def test_a_client_is_known_whether_its_sums_came_in_float32_or_float64() -> None:
    rows = StatisticsSpec().from_features(torch.randn(9, 5), torch.arange(9) % 3, 3).rows
    rounded = ClassMeanRows(rows.class_ids, rows.counts, num_classes=3, class_sums=rows.class_sums.to(torch.float32))

    assert client_digest(ClientStatistics(rows)) == client_digest(ClientStatistics(rounded))


def test_the_digest_is_that_of_the_rows_in_the_order_of_their_bytes() -> None:
    ids, counts = torch.tensor([0, 1, 3]), torch.tensor([2, 300, 1])
    rows = ClassMeanRows(ids, counts, num_classes=4, class_sums=torch.randn(3, 5))
    numbers = zip(rows.counts.numpy(), rows.class_sums.numpy(), strict=True)
    parts = sorted(count.tobytes() + sums.tobytes() for count, sums in numbers)

    assert client_digest(ClientStatistics(rows)) == hashlib.sha256(b"".join(parts)).hexdigest()
