"""Options of training from the head, whatever trains. No torch is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedstats_app.methods import method_list
from fedstats_app.settings.option import Options, absolute, flag, number, one_of, option, whole, word_list
from fedstats_app.training.options import BatchNorm
from fedstats_app.training.schedule import SCHEDULES, rate_factor

# Heads to start from that no statistics are needed for.
MADE_HEADS = ("random", "zero", "label-words")
# The head of an earlier run, by the path of its file.
FILE_HEAD = "file"


def rates_by_start(value: object) -> object:
    """Check for learning rates by the names of heads to start from, or the empty text."""
    if value == "":
        return value
    pairs = [tuple(part.strip() for part in one.rpartition("=")) for one in str(value).split(",")]
    try:
        method_list((*MADE_HEADS, FILE_HEAD))(",".join(name for name, _, _ in pairs))
        rates = [number(0.0, open_low=True)(rate) for _, _, rate in pairs]
    except ValueError as error:
        raise ValueError(f"must be HEAD=RATE, separated by commas; {error}") from error
    return ",".join(f"{name}={rate}" for (name, _, _), rate in zip(pairs, rates, strict=True))


@dataclass(frozen=True)
class TuningOptions(Options):
    """Training from the head, whatever trains: from where, for how long, and how it is scored."""

    start_head: str = option(
        "best",
        method_list((*MADE_HEADS, FILE_HEAD), "best", "all"),
        "best = the most accurate; all; or some methods, random, zero, label-words, file",
    )
    start_head_file: str = option(
        "", absolute, 'of start-head "file": /PATH/TO/RUN_FOLDER/heads/NAME.safetensors of an earlier run'
    )
    label_words: str = option("", word_list, 'one word per class, separated by commas, for start-head "label-words"')
    start_learning_rates: str = option("", rates_by_start, 'of single heads in place of it, "fedncm=0.01,random=0.1"')
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = option(
        "constant", one_of(*SCHEDULES), "over the rounds: constant | linear | cosine, both down to next to nothing"
    )
    warm_up_rounds: int = option(0, whole(0, 1_000_000), "rounds in which the rate rises to its whole")
    num_server_rounds: int = option(20, whole(1, 1_000_000), "a round is one aggregation")
    fraction_tune: float = option(
        1.0, number(0.0, 1.0, open_low=True), "share of the clients that train in a round, drawn by (seed, round)"
    )
    max_tuning_share: float = option(
        1.0, number(0.0, 1.0, open_low=True), "at most this share of a round's samples counts for one client"
    )
    temperature: float | Literal["auto"] = option(
        "auto",
        number(0.0, open_low=True, word="auto"),
        "logits are divided by it: 1 as in FedCOF, 0.1 as in Fed3R; auto = 1, after a probe's "
        "solved head was divided once by that of the clients' least loss",
    )
    tune_bias: bool = option(True, flag, "false = the head's bias stays as it is (the papers' heads have none)")
    batch_norm: Literal["frozen", "kept", "averaged", "groupnorm"] = option(
        "frozen",
        one_of("frozen", "kept", "averaged", "groupnorm"),
        "frozen | kept | averaged | groupnorm: running statistics while training",
    )
    evaluate_every: int = option(1, whole(1, 1_000_000), "rounds between evaluations")
    patience: int = option(0, whole(0, 1_000_000), "evaluations without a better accuracy that end training; 0 = never")
    checkpoint_every: int = option(10, whole(0, 1_000_000), "rounds between checkpoints; 0 = none")
    keep: Literal["auto", "last", "best"] = option(
        "auto",
        one_of("auto", "last", "best"),
        "which round's model: auto = last, or a probe's start where clients' loss did not fall | "
        "last | best = on what clients hold out (holdout-fraction)",
    )

    @property
    def running_statistics(self) -> BatchNorm:
        """What happens to BatchNorm's running statistics; with GroupNorm in its place there are none."""
        return "frozen" if self.batch_norm == "groupnorm" else self.batch_norm

    @property
    def logit_temperature(self) -> float:
        """By what logits are divided in every round; a temperature that is found divides the start's once."""
        return 1.0 if self.temperature == "auto" else self.temperature

    def rate_factor(self, number: int) -> float:
        """Return what the clients' learning rate is multiplied by in a round, by schedule and warm-up."""
        return rate_factor(self.learning_rate_schedule, number, self.num_server_rounds, self.warm_up_rounds)

    @property
    def rates(self) -> dict[str, float]:
        """The learning rates of single heads to start from, by their names."""
        pairs = (one.rpartition("=") for one in self.start_learning_rates.split(",") if one)
        return {name: float(rate) for name, _, rate in pairs}

    @property
    def words(self) -> tuple[str, ...]:
        """The label words, one per class; none where there are none."""
        return tuple(self.label_words.split(",")) if self.label_words else ()

    def start_heads(self, methods: tuple[str, ...]) -> tuple[str, ...]:
        """Return the heads to start from, in the order asked for; ("best",) for the most accurate one."""
        return (*methods, "random") if self.start_head == "all" else tuple(self.start_head.split(","))
