"""What is sent arrives: every kind of message says to its reader what its writer was given."""

import json
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal

import pytest
import torch
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.base.option import as_text
from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.testing import instruction
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.wire import NodeInfo, RejectedReply, node_info_reply, read_node_info
from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.mezo import (
    MAX_SCALAR,
    UNKNOWN,
    MezoReply,
    MezoRequest,
    mezo_reply,
    read_mezo_reply,
    read_mezo_request,
)
from fedstats_app.wire.reading import MAX_COUNT, from_values, to_values
from fedstats_app.wire.training import (
    EvaluationCounts,
    check_training_reply,
    nothing_to_train_reply,
    read_losses_reply,
    read_training_task,
)
from tests.wire.messages import ARRAYS, ASKED, KINDS, SETUP, SHAPES

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.integers(0, 2**63 - 1)


def plain(value: Any) -> Any:
    """Return a value as plain ones that can be compared: tensors by dtype and numbers."""
    if isinstance(value, Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return plain(vars(value)) if is_dataclass(value) else value


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.says is not None])
def test_what_is_sent_arrives(name: str) -> None:
    assert plain(KINDS[name].read(KINDS[name].good())) == plain(KINDS[name].says)


@pytest.mark.parametrize(
    "info", [NodeInfo(0, 1), NodeInfo(99, 100), NodeInfo(), NodeInfo(class_names=("a", "b")), NodeInfo(class_ids=())]
)
def test_what_a_node_says_of_itself_arrives(info: NodeInfo) -> None:
    assert read_node_info(node_info_reply(ASKED, info)) == info


def test_a_client_without_samples_is_no_failure() -> None:
    empty = nothing_to_train_reply(ASKED)
    assert check_training_reply(empty, SHAPES).num_examples == read_losses_reply(empty, 0).losses.__len__() == 0
    with pytest.raises(RejectedReply, match="missing"):
        check_training_reply(empty, SHAPES, 7)
    with pytest.raises(RejectedReply, match="missing"):
        read_losses_reply(empty, 7)


@given(NUMBERS, st.integers(1, 2**62), NUMBERS, st.lists(st.tuples(NUMBERS, st.tuples(FINITE, FINITE)), min_size=1))
def test_any_round_of_fedmezo_arrives(training: int, number: int, seed: int, entries: list[Any]) -> None:
    request = MezoRequest(training, number, seed, tuple(Update(one, steps) for one, steps in entries))
    assert read_mezo_request(instruction(request.to_content())) == request


@given(st.lists(st.floats(-MAX_SCALAR, MAX_SCALAR), max_size=5), st.integers(1, MAX_COUNT))
def test_any_scalars_arrive(scalars: list[float], number: int) -> None:
    answer = MezoReply(tuple(scalars), number, bytes(range(16)))
    assert read_mezo_reply(mezo_reply(ASKED, answer), len(scalars), number) == answer
    assert read_mezo_reply(mezo_reply(ASKED, UNKNOWN), 1, 5) == UNKNOWN


@pytest.mark.parametrize(
    "arrays",
    [
        {"head.weight": ARRAYS["head.weight"]},
        {**ARRAYS, "backbone.weight": torch.zeros(1)},
        {**ARRAYS, "head.bias": torch.zeros(3)},
        {**ARRAYS, "head.bias": ARRAYS["head.bias"].double()},
    ],
)
def test_other_arrays_than_those_that_went_down_are_rejected(arrays: dict[str, torch.Tensor]) -> None:
    content = KINDS["train reply"].good()
    content["arrays"] = to_record(arrays)
    with pytest.raises(RejectedReply, match=r"head\.bias: must|missing|unexpected"):
        KINDS["train reply"].read(content)


def test_evaluation_counts_add_up() -> None:
    assert EvaluationCounts(4, 3, 1.5) + EvaluationCounts(1, 0, 2.0) == EvaluationCounts(5, 3, 3.5)


def test_what_nobody_asked_for_is_not_in_a_request() -> None:
    """A key more would change the bytes of every training."""
    assert to_values(TrainingRequest(3)) == {
        "num-classes": 3,
        "seed": 0,
        "holdout": 0.0,
        "tune": "probe",
        "local-epochs": 1,
        "training.batch-size": 16,
        "training.momentum": 0.0,
        "training.weight-decay": 0.0,
        "training.flip": False,
        "learning-rate": 0.01,
        "temperature": 1.0,
        "tune-bias": True,
    }


def test_bytes_are_counted() -> None:
    assert MezoRequest(0, 1, 7).round_bytes == 24
    one = MezoRequest(0, 9, 7, (Update(1, (0.5,)),))
    assert (one.round_bytes, one.catch_up_bytes) == (40, 0)
    missed = MezoRequest(0, 9, 7, (Update(1, (0.5,)),) * 4)
    assert (missed.round_bytes, missed.catch_up_bytes) == (40, 48)
    first = MezoRequest(0, 1, 7, setup=SETUP, start=ARRAYS)
    assert (first.round_bytes, first.catch_up_bytes) == (24, 4 * (5 * 6 + 5))
    assert MezoReply((0.5,), 3, bytes(16)).num_bytes == 32


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive and finite"),
        ({"num_directions": 0}, "num_directions must lie in"),
        ({"tuned": "full"}, "tune does not fit the tuned part, got 'probe' for 'full'"),
        ({"distribution": "uniform"}, "distribution must be one of"),
    ],
)
def test_a_setup_that_cannot_be_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        MezoSetup(TrainingRequest(2), **options)


def test_a_setup_goes_through_json() -> None:
    assert to_values(from_values(MezoSetup, json.loads(json.dumps(to_values(SETUP))))) == to_values(SETUP)


@dataclass(frozen=True)
class Inner:
    some_words: tuple[str, ...] = ("a",)
    shade: Literal["light", "dark"] = "dark"

    def __post_init__(self) -> None:
        if not self.some_words:
            raise ValueError("some_words must be at least one")


@dataclass(frozen=True)
class Outer:
    number: int
    inner: Inner = field(default_factory=Inner)
    share: float = field(default=0.5, metadata={"key": "the-share"})
    is_open: bool = False
    table: tuple[int, ...] = field(default=(1, 2), metadata=as_text(list, tuple))
    options: LocalOptions = field(default_factory=LocalOptions)


MADE = Outer(3, Inner(("b", "c"), "light"), 1, True, (4,), LocalOptions(epochs=2, flip=True, proximal_mu=0.5))


def test_what_was_written_is_read_with_the_types_of_the_annotations() -> None:
    values = to_values(MADE)
    assert values.pop("the-share") == 1.0 and set(values) >= {"some-words", "shade", "is-open", "local-epochs"}
    assert values["table"] == "[4]" and "proximal-mu" not in values  # Flower's FedProx sends that one
    read = from_values(Outer, {**values, "the-share": 1.0, "of-nobody": 0})
    assert read == replace(MADE, options=LocalOptions(epochs=2, flip=True)) and type(read.share) is float


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("the-share", 1, "the-share: must be a finite float, got 1"),
        ("shade", "red", "shade: must be one of light, dark, got 'red'"),
        ("some-words", [], "some_words must be at least one"),
        ("table", "5", "table: TypeError: 'int' object is not iterable"),
    ],
)
def test_what_only_looks_like_it_is_refused(key: str, value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        from_values(Outer, {**to_values(MADE), key: value})


@pytest.mark.parametrize("mu", [0, 1, 0.3])
def test_flowers_fedprox_sends_its_term_as_its_user_gave_it(mu: float) -> None:
    content = KINDS["train"].good()
    content["config"]["proximal-mu"] = mu  # type: ignore[index,call-overload]
    msg: Message = instruction(content, "train")
    term = read_training_task(msg).request.options.proximal_mu
    assert term == mu and type(term) is float
