"""Options of training from the head, whatever trains. No torch is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedstats_app.methods import method_list
from fedstats_app.options import Options, flag, number, one_of, option, whole, word_list
from fedstats_app.training.options import BatchNorm

# Heads to start from that no statistics are needed for.
MADE_HEADS = ("random", "zero", "label-words")


@dataclass(frozen=True)
class TuningOptions(Options):
    """Training from the head, whatever trains: from where, for how long, and how it is scored."""

    start_head: str = option("best", method_list(MADE_HEADS, "best", "all"))
    label_words: str = option("", word_list)
    num_server_rounds: int = option(20, whole(1, 1_000_000))
    fraction_tune: float = option(1.0, number(0.0, 1.0, open_low=True))
    max_tuning_share: float = option(1.0, number(0.0, 1.0, open_low=True))
    temperature: float | Literal["auto"] = option("auto", number(0.0, open_low=True, word="auto"))
    tune_bias: bool = option(True, flag)
    batch_norm: Literal["frozen", "kept", "averaged", "groupnorm"] = option(
        "frozen", one_of("frozen", "kept", "averaged", "groupnorm")
    )
    evaluate_every: int = option(1, whole(1, 1_000_000))
    patience: int = option(0, whole(0, 1_000_000))
    checkpoint_every: int = option(10, whole(0, 1_000_000))
    keep: Literal["auto", "last", "best"] = option("auto", one_of("auto", "last", "best"))

    @property
    def running_statistics(self) -> BatchNorm:
        """What happens to BatchNorm's running statistics; with GroupNorm in its place there are none."""
        return "frozen" if self.batch_norm == "groupnorm" else self.batch_norm

    @property
    def logit_temperature(self) -> float:
        """By what logits are divided in every round; a temperature that is found divides the start's once."""
        return 1.0 if self.temperature == "auto" else self.temperature

    @property
    def words(self) -> tuple[str, ...]:
        """The label words, one per class; none where there are none."""
        return tuple(self.label_words.split(",")) if self.label_words else ()

    def start_heads(self, methods: tuple[str, ...]) -> tuple[str, ...]:
        """Return the heads to start from, in the order asked for; ("best",) for the most accurate one."""
        return (*methods, "random") if self.start_head == "all" else tuple(self.start_head.split(","))
