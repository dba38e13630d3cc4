"""Names of integer labels, in a simulation and at sites with data of their own."""

from pathlib import Path

import pytest

from fedstats_app.data.clients import own_dataset, training_set
from fedstats_app.data.clients import test_split as split_for_testing
from fedstats_app.data.data_options import DataOptions
from fedstats_app.data.dataset import DatasetError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for split, labels in (("train", (0, 2, 2)), ("test", (2, 0))):
        lines = "".join(f"text {label},{label}\n" for label in labels)
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{lines}")
    return tmp_path


@pytest.mark.parametrize("in_file", [False, True])
def test_integer_labels_get_their_names(table: Path, tmp_path: Path, in_file: bool) -> None:
    names = "cat,dog,hen"
    if in_file:
        (file := tmp_path / "names.txt").write_text("cat\ndog\nhen\n", encoding="utf-8-sig")
        names = str(file)
    options = DataOptions(dataset=f"csv:{table}", class_names=names, classes="hen,cat")

    for data in (training_set(options), split_for_testing(options.dataset, options)):
        assert data is not None
        named = [(data.sample(i), data.class_names[label]) for i, label in enumerate(data.labels)]
        assert {*named} == {("text 0", "cat"), ("text 2", "hen")}


def test_a_site_takes_a_list_and_reads_no_file_that_a_run_names(table: Path) -> None:
    data = own_dataset(str(table), DataOptions(class_names="cat,dog,hen"))
    assert data.class_names == ("cat", "hen") and not data.numbered  # dog has no rows here
    assert "the test split, 2 texts, is left out: a site holds out some of the others itself" in data.notes
    with pytest.raises(DatasetError, match="a file is for simulations"):
        own_dataset(str(table), DataOptions(class_names="/etc/hostname"))


@pytest.mark.parametrize(
    ("names", "reason"),
    [("cat,dog", "a name for each label from 0 to 2 .*, got 2"), ("/no/such/file", "/no/such/file cannot be read: ")],
)
def test_names_that_do_not_fit_are_refused(table: Path, names: str, reason: str) -> None:
    with pytest.raises(DatasetError, match=f"class-names: .*{reason}"):
        training_set(DataOptions(dataset=f"csv:{table}", class_names=names))


def test_classes_that_have_names_keep_them() -> None:
    with pytest.raises(DatasetError, match=r"are for integer labels, builtin .* has T-shirt/top, Trouser"):
        training_set(DataOptions(class_names="a,b"))
