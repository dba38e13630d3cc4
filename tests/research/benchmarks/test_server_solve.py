from fedstats_app.statistics import ClassMeanRows
from research.benchmarks.fedcof_rows import Size, fedcof_as_published, synthetic_rows
from tests.support.compare import absolute_difference
from tests.support.literal import fedcof, unit_rows


def test_the_papers_side_computes_the_papers_formula() -> None:
    class_ids, counts, means = synthetic_rows(Size(clients=30, classes=6, rows=100, dim=12), seed=3)
    head = fedcof_as_published(class_ids, counts, means, 7, gamma=1.0)  # one class is absent
    expected = fedcof(ClassMeanRows(class_ids, counts, means, 7), 1.0)
    assert absolute_difference(head, unit_rows(expected.raw_weight)) <= 2e-5
