import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.statistics import (
    ClassMeanRows,
    ClientStatistics,
    FeatureStatistics,
    StatisticsAccumulator,
    StatisticsSpec,
)
from fedstats_app.statistics.collected import StatisticsSum
from tests.support.compare import relative_difference, same_bits
from tests.support.draws import Sample, samples


def _client(features: torch.Tensor, labels: torch.Tensor, num_classes: int, **options: bool) -> ClientStatistics:
    return ClientStatistics(
        StatisticsSpec().from_features(features, labels, num_classes).rows,
        FeatureStatistics.from_features(features, labels, num_classes).gram if options.get("gram", True) else None,
    )


@given(sample=samples(), batch_size=st.integers(1, 9), means_per_class=st.integers(1, 3), gram=st.booleans())
def test_batches_accumulate_to_the_whole(sample: Sample, batch_size: int, means_per_class: int, gram: bool) -> None:
    dim = sample.features.shape[1]
    options = {"gram": gram, "means_per_class": means_per_class}
    accumulator = StatisticsAccumulator(sample.labels, sample.num_classes, dim, **options)
    for batch in sample.features.split(batch_size):
        accumulator.update(batch)
    client = accumulator.statistics()
    spec = StatisticsSpec(means_per_class=means_per_class)
    rows = spec.from_features(sample.features, sample.labels, sample.num_classes).rows
    size = sample.features.double().abs()
    assert torch.equal(client.rows.class_ids, rows.class_ids) and torch.equal(client.rows.counts, rows.counts)
    assert relative_difference(client.rows.class_sums, rows.class_sums, scale=float(size.sum())) <= 1e-12
    expected = FeatureStatistics.from_features(sample.features, sample.labels, sample.num_classes, gram=gram).gram
    assert (client.gram is None) == (expected is None)
    if client.gram is not None and expected is not None:
        assert relative_difference(client.gram, expected, scale=float((size.T @ size).sum())) <= 1e-12
        assert torch.equal(client.gram, client.gram.T)


def test_an_accumulator_refuses_batches_that_do_not_fit_and_keeps_what_it_has() -> None:
    accumulator = StatisticsAccumulator(torch.tensor([0, 1, 1]), 2, 2, gram=True)
    accumulator.update(torch.ones(2, 2))
    with pytest.raises(ValueError, match="features must belong to the 3 labelled samples, got more"):
        accumulator.update(torch.ones(2, 2))
    with pytest.raises(ValueError, match="each labelled sample gives one feature, got one twice"):
        accumulator.update(torch.ones(1, 2), torch.tensor([1]))
    with pytest.raises(ValueError, match="each labelled sample gives one feature, got one twice"):
        accumulator.update(torch.ones(2, 2), torch.tensor([2, 2]))
    with pytest.raises(ValueError, match=r"shape \(b, 2\), got \(1, 3\)"):
        accumulator.update(torch.ones(1, 3))
    with pytest.raises(ValueError, match="features must be finite"):
        accumulator.update(torch.full((1, 2), torch.inf))
    with pytest.raises(ValueError, match="all 3 labelled samples must come, got 2"):
        accumulator.statistics()
    accumulator.update(torch.ones(1, 2))
    assert accumulator.statistics().summed().class_sums.tolist() == [[1.0, 1.0], [2.0, 2.0]]


@given(sample=samples(), data=st.data())
def test_unreadable_samples_are_as_if_they_had_never_been(sample: Sample, data: st.DataObject) -> None:
    n = len(sample.labels)
    readable = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=torch.bool)
    dim, rule = sample.features.shape[1], RankRule("full")
    accumulator = StatisticsAccumulator(sample.labels, sample.num_classes, dim, gram=True, scatter=rule)
    for positions in readable.nonzero().squeeze(1).flip(0).split(5):
        accumulator.update(sample.features[positions], positions)
    client = accumulator.statistics(skipped=int((~readable).sum()))
    expected = _client(sample.features[readable], sample.labels[readable], sample.num_classes)
    size = sample.features.double().abs()
    assert torch.equal(client.rows.class_ids, expected.rows.class_ids)
    assert torch.equal(client.rows.counts, expected.rows.counts)
    assert relative_difference(client.rows.class_sums, expected.rows.class_sums, scale=float(size.sum())) <= 1e-12
    assert relative_difference(client.gram, expected.gram, scale=float((size.T @ size).sum())) <= 1e-12
    assert client.scatter is not None and client.gram is not None
    factor, scatter = client.scatter.scaled(), client.gram - client.rows.products()
    assert relative_difference(factor.T @ factor, scatter, scale=max(float(size.square().sum()), 1e-300)) <= 1e-11


def test_a_gram_matrix_of_another_size_or_precision_is_refused() -> None:
    rows = ClassMeanRows.zeros(2, 3)
    for gram in (torch.zeros(2, 2, dtype=torch.float64), torch.zeros(3, 3)):
        with pytest.raises(ValueError, match=r"gram must be \(3, 3\) float64"):
            ClientStatistics(rows, gram)
    with pytest.raises(ValueError, match="both have a Gram matrix or both have none"):
        ClientStatistics(rows) + ClientStatistics(rows, torch.zeros(3, 3, dtype=torch.float64))


@given(sample=samples())
def test_a_sum_keeps_the_rows_in_the_order_of_the_clients(sample: Sample) -> None:
    clients = [_client(*part, sample.num_classes) for part in sample.parts]
    total = StatisticsSum(sample.num_classes, sample.features.shape[1], gram=True, keep_rows=True)
    for client in clients:
        total.add(client)
        seen = total.rows()  # a head may be solved after every client
    expected = ClassMeanRows.concatenate([client.rows for client in clients])
    for attribute in ("class_ids", "counts", "class_sums"):
        assert same_bits(getattr(seen, attribute), getattr(expected, attribute))
    assert total.num_rows == len(expected)
    assert total.num_pairs == sum(len(set(labels.tolist())) for _, labels in sample.parts)


def test_a_sum_refuses_what_does_not_fit_and_stays_as_it_was() -> None:
    total = StatisticsSum(2, 3, gram=True, keep_rows=True)
    total.add(_client(torch.ones(2, 3), torch.tensor([0, 1]), 2))
    before = total.summed()
    gram = torch.ones(3, 3, dtype=torch.float64)
    noisy = ClassMeanRows(torch.tensor([0]), torch.tensor([1.5], dtype=torch.float64), torch.ones(1, 3), 2)
    with pytest.raises(ValueError, match=r"\(2, 3\), got \(2, 4\)"):
        total.add(_client(torch.ones(2, 4), torch.tensor([0, 1]), 2))
    with pytest.raises(ValueError, match="must have a Gram matrix, got none"):
        total.add(_client(torch.ones(2, 3), torch.tensor([0, 1]), 2, gram=False))
    with pytest.raises(ValueError, match=r"must have int64 counts, got torch\.float64"):
        total.add(ClientStatistics(noisy, gram))
    after = total.summed()
    assert before.gram is not None and after.gram is not None
    assert torch.equal(before.gram, after.gram) and torch.equal(before.class_sums, after.class_sums)
    assert len(total.rows()) == 2 and total.num_rows == 2


def test_rows_that_were_not_kept_cannot_be_had() -> None:
    total = StatisticsSum(2, 3, gram=False, keep_rows=False)
    with pytest.raises(ValueError, match="keep_rows=False"):
        total.rows()
