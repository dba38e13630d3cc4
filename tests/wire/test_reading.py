"""Dataclasses travel by their annotations: what was written is read, and nothing that only looks like it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from flwr.app import Message

from fedstats_app.settings.option import as_text
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.wire.reading import from_values, to_values
from fedstats_app.wire.training import read_training_task
from tests.support.local_grid import instruction
from tests.wire.messages import training_content


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
    content = training_content()
    content["config"]["proximal-mu"] = mu  # type: ignore[index,call-overload]
    msg: Message = instruction(content, "train")
    term = read_training_task(msg).request.options.proximal_mu
    assert term == mu and type(term) is float
