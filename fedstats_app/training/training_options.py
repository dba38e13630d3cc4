"""Options of training from a head: the start, the rounds, the clients' SGD, the server's optimiser; without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from fedstats_app.base.option import Options, flag, is_absolute, number, one_of, option, whole, word_list
from fedstats_app.methods import method_list

OPTIMIZERS = ("fedavg", "fedprox", "fedadam")
# Learning rate where "auto" stands and none is found, but for a trainer with a rate of its own.
FIXED_RATE = 0.01
_RATE = "auto = probe: from class means and local steps; fedmezo: from the loss's curvature; else 0.001"

# Scores of one training, evenly spaced over its rounds, beside those of the start and the end.
EVALUATIONS = 20
# Heads to start from that need no statistics.
MADE_HEADS = ("random", "zero", "label-words")
# The head of an earlier run, by the path of its file.
FILE_HEAD = "file"


@dataclass(frozen=True)
class _SgdOptions(Options):
    """Options of the configuration and of a request, without the learning rate."""

    epochs: int = option(1, whole(1, 100_000), "of a client in a round", key="local-epochs")
    batch_size: int = option(16, whole(1, 1_000_000), "samples per step", key="training.batch-size")
    momentum: float = option(0.0, number(0.0, 1.0), "of SGD", key="training.momentum")
    weight_decay: float = option(0.0, number(0.0), "of SGD", key="training.weight-decay")
    flip: bool = option(False, flag, "random horizontal flips", key="training.flip")


@dataclass(frozen=True)
class LocalOptions(_SgdOptions):
    """Options of a client's SGD; a value out of range is a ValueError.

    Attributes
    ----------
    batch_size : int
        Samples per step; the last batch of an epoch has the rest.
    learning_rate, momentum, weight_decay : float
        As in torch.optim.SGD; momentum begins at 0 in every call.
    flip : bool
        Mirror images left to right with probability 1/2.
    proximal_mu : float
        FedProx (Li et al., MLSys 2020): adds mu (theta - theta_start) to the gradient; 0 for none. Flower's FedProx
        sets it, so it has no key of its own here.
    """

    learning_rate: float = option(FIXED_RATE, number(0.0, open_low=True), _RATE)
    proximal_mu: float = 0.0

    def __post_init__(self) -> None:
        allowed = {
            "epochs": (self.epochs >= 1, "be at least 1"),
            "batch_size": (self.batch_size >= 1, "be at least 1"),
            "learning_rate": (0.0 < self.learning_rate < math.inf, "be positive and finite"),
            "momentum": (0.0 <= self.momentum < 1.0, "lie in [0, 1)"),
            "weight_decay": (0.0 <= self.weight_decay < math.inf, "be at least 0 and finite"),
            "proximal_mu": (0.0 <= self.proximal_mu < math.inf, "be at least 0 and finite"),
        }
        for name, (holds, must) in allowed.items():
            if not holds:
                raise ValueError(f"{name} must {must}, got {getattr(self, name)}")


@dataclass(frozen=True)
class ClientOptions(_SgdOptions):
    """Training on clients: SGD as a run configures it, whose learning rate may be left to be found."""

    learning_rate: float | Literal["auto"] = option("auto", number(0.0, open_low=True, word="auto"), _RATE)

    def conflicts(self, config: Any) -> Iterator[str]:
        """Refuse flips of texts."""
        if config.backbone.takes_text and self.flip:
            yield f"training.flip: is for images, got true with backbone {config.backbone.backbone!r}"

    def with_rate(self, found: float = FIXED_RATE) -> LocalOptions:
        """Return the options of clients; ``found`` is the learning rate if none is set."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        rate = found if self.learning_rate == "auto" else self.learning_rate
        return LocalOptions(**{**values, "learning_rate": rate})


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """Server optimizer: what the server does with the clients' updates."""

    optimizer: str = option("fedavg", one_of(*OPTIMIZERS), "fedavg | fedprox | fedadam")
    server_learning_rate: float = option(
        0.01, number(0.0, open_low=True), "of fedadam", key="training.server-learning-rate"
    )
    proximal_mu: float = option(0.01, number(0.0), "of fedprox", key="training.proximal-mu")
    update_clip: float = option(
        1.0, number(0.0), "updates are shortened to this many times the usual; 0 = never", key="training.clip"
    )


def _start_heads(value: object) -> object:
    """Check for methods and made heads, or for the absolute path of a head."""
    return value if isinstance(value, str) and is_absolute(value) else method_list(MADE_HEADS, "best", "all")(value)


@dataclass(frozen=True)
class TuningOptions(Options):
    """Training from the head: from where, for how long, and how it is scored."""

    start_head: str = option(
        "best",
        _start_heads,
        "best | all | some methods, random, zero, label-words | /PATH/TO/RUN_FOLDER/heads/NAME.safetensors",
    )
    label_words: str = option("", word_list, 'one word per class: "terrible,great"')
    num_server_rounds: int = option(20, whole(1, 1_000_000), "aggregations")
    fraction_tune: float = option(1.0, number(0.0, 1.0, open_low=True), "share of clients in a round")
    max_tuning_share: float | Literal["auto"] = option(
        "auto",
        number(0.0, 1.0, open_low=True, word="auto"),
        "most that one client counts for; auto = 0.2, or 1.5 / K of K clients; 1 = no limit",
        key="training.max-share",
    )
    temperature: float | Literal["auto"] = option(
        "auto",
        number(0.0, open_low=True, word="auto"),
        "divides logits; papers: 1 (FedCOF), 0.1 (Fed3R); auto = the clients' least loss (probe, fedmezo), else 1",
    )
    tune_bias: bool = option(True, flag, "false = the bias stays", key="training.tune-bias")
    batch_norm: Literal["frozen", "groupnorm"] = option(
        "frozen", one_of("frozen", "groupnorm"), "frozen | groupnorm", key="training.batch-norm"
    )

    def conflicts(self, config: Any) -> Iterator[str]:
        """Refuse heads that are not made in the run, words without a template, and what the trainer does not take."""
        start = self.start_heads(config.methods)
        unsolved = [name for name in start if name not in (*config.methods, *MADE_HEADS, FILE_HEAD, "best")]
        if config.trainer and unsolved:
            yield f"start-head: method must name {', '.join(unsolved)} too, got method {config.run.method!r}"
        if self.label_words and not config.backbone.text_template:
            yield f"label-words: need a text-template, got {self.label_words!r} without"
        if "label-words" in start and not self.label_words:
            yield "start-head: label-words needs the words in label-words, got none"
        if config.trainer and not config.trainer.by_gradient and self.batch_norm != "frozen":
            yield f"batch-norm: fedmezo needs frozen running statistics, got {self.batch_norm!r}"

    @property
    def max_share(self) -> float | None:
        """The most that one client counts for in a round; None for the default of the strategies."""
        return None if self.max_tuning_share == "auto" else self.max_tuning_share

    def is_scored(self, number: int) -> bool:
        """Return whether the model is scored, and kept, after a round: the start, the last one, and some between."""
        last = self.num_server_rounds
        return number in (0, last) or number % max(1, last // EVALUATIONS) == 0

    @property
    def logit_temperature(self) -> float:
        """Divisor of the logits in every round; a temperature that is found divides the start's once."""
        return 1.0 if self.temperature == "auto" else self.temperature

    @property
    def words(self) -> tuple[str, ...]:
        """Label words, one per class, or none."""
        return tuple(self.label_words.split(",")) if self.label_words else ()

    def start_heads(self, methods: tuple[str, ...]) -> tuple[str, ...]:
        """Return the heads to start from, in the order asked for; ("best",) for the most accurate one."""
        if self.start_head_file:
            return (FILE_HEAD,)
        return (*methods, "random") if self.start_head == "all" else tuple(self.start_head.split(","))

    @property
    def start_head_file(self) -> str:
        """The path of the head to start from; "" if none is named."""
        return self.start_head if is_absolute(self.start_head) else ""
