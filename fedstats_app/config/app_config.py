"""AppConfig: the only reader of run-config. All errors are reported together, before any work."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from fedstats_app.config.checks import (
    Check,
    ConfigError,
    approach_list,
    backbone_name,
    dataset_spec,
    device_name,
    empty_or,
    flag,
    is_absolute,
    method_list,
    number,
    one_of,
    start_head_list,
    text,
    text_template,
    tuned_part,
    whole,
    word_list,
)
from fedstats_app.config.names import (
    AUTO_SERVER_RATE,
    MADE_HEADS,
    METHOD_NAMES,
    OPTIMIZER_NAMES,
    PARTITIONERS,
    PERSONAL_APPROACHES,
    TEXT_BACKBONES,
    TEXT_PREFIXES,
)


def key(default: object, check: Check) -> Any:
    """Return a field with its default and the check of its value."""
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True)
class AppConfig:
    """Every run-config key, with underscores for hyphens; what each means stands in pyproject.toml."""

    method: str = key("all", method_list)
    seed: int = key(0, whole(0, 2**31 - 1))
    # Data
    dataset: str = key("builtin", dataset_spec)
    test_dataset: str = key("", empty_or(dataset_spec))
    image_column: str = key("", text)
    text_column: str = key("", text)
    label_column: str = key("", text)
    holdout_fraction: float = key(0.2, number(0.0, 0.9, open_low=True))
    num_clients: int = key(100, whole(1, 1_000_000))
    partitioner: str = key("dirichlet", one_of(*PARTITIONERS))
    dirichlet_alpha: float = key(0.1, number(0.0, open_low=True))
    partition_column: str = key("", text)
    classes_per_client: int = key(2, whole(1, 1_000_000))
    partition_uniform_share: float = key(0.2, number(0.0, 1.0))
    # Backbone
    backbone: str = key("efficientnet_lite0", backbone_name)
    backbone_weights: str = key("", text)
    input_size: int = key(0, whole(0, 4096))
    text_max_length: int = key(0, whole(0, 1_000_000))
    text_pooling: Literal["auto", "mean", "first"] = key("auto", one_of("auto", "mean", "first"))
    text_template: str = key("", text_template)
    label_words: str = key("", word_list)
    batch_size: int = key(16, whole(1, 4096))
    device: str = key("auto", device_name)
    autocast: str = key("none", one_of("none", "bf16", "fp16"))
    channels_last: bool = key(True, flag)
    feature_cache: str = key("auto", one_of("auto", "off"))
    cache_dir: str = key("", text)
    # Methods
    ridge_lambda: float | Literal["auto"] = key("auto", number(0.0, word="auto"))
    fed3r_between_class: bool = key(True, flag)
    fed3r_bias: bool = key(False, flag)
    fed3r_solver: Literal["cholesky", "pinv32"] = key("cholesky", one_of("cholesky", "pinv32"))
    fed3r_random_features: int = key(0, whole(0, 100_000))
    fed3r_kernel_width: float | Literal["auto"] = key("auto", number(0.0, open_low=True, word="auto"))
    fedcof_shrinkage: float | Literal["auto"] = key("auto", number(0.0, word="auto", infinite=True))
    fedcof_between_class: bool = key(False, flag)
    fedcof_means_per_class: int = key(1, whole(1, 10_000))
    fedcgs_covariance: Literal["total", "within"] = key("total", one_of("total", "within"))
    fedcgs_shrinkage: float = key(0.01, number(0.0))
    fedcgs_random_features: int = key(0, whole(0, 100_000))
    fedcgs_activation: str = key("relu", one_of("relu", "tanh", "identity"))
    mask_absent: bool = key(True, flag)
    # Federation
    wire_dtype: str = key("float32", one_of("float32", "float64"))
    fraction_train: float = key(1.0, number(0.0, 1.0, open_low=True))
    min_clients: int = key(2, whole(1, 1_000_000))
    wait_timeout: float = key(120.0, number(0.0, 1e7, open_low=True))
    settle_seconds: float = key(10.0, number(0.0, 1e7))
    reply_timeout: float = key(600.0, number(0.0, 1e7, open_low=True))
    window_megabytes: int = key(128, whole(1, 100_000))
    min_class_count: int = key(0, whole(0, 1_000_000))
    extend: str = key("", text)
    # Stage 2: training from the head
    fine_tune: Literal["none", "full", "probe", "features", "fedmezo"] = key(
        "none", one_of("none", "full", "probe", "features", "fedmezo")
    )
    start_head: str = key("best", start_head_list)
    optimizer: str = key("fedavg", one_of(*OPTIMIZER_NAMES))
    num_server_rounds: int = key(20, whole(1, 1_000_000))
    fraction_tune: float = key(1.0, number(0.0, 1.0, open_low=True))
    local_epochs: int = key(1, whole(1, 100_000))
    train_batch_size: int = key(16, whole(1, 1_000_000))
    learning_rate: float = key(0.01, number(0.0, open_low=True))
    momentum: float = key(0.0, number(0.0, 1.0))
    weight_decay: float = key(0.0, number(0.0))
    flip: bool = key(False, flag)
    server_learning_rate: float | Literal["auto"] = key("auto", number(0.0, open_low=True, word="auto"))
    server_momentum: float = key(0.9, number(0.0, 1.0))
    proximal_mu: float = key(0.01, number(0.0))
    temperature: float = key(1.0, number(0.0, open_low=True))
    tune_bias: bool = key(True, flag)
    batch_norm: Literal["frozen", "kept", "averaged", "groupnorm"] = key(
        "frozen", one_of("frozen", "kept", "averaged", "groupnorm")
    )
    evaluate_every: int = key(1, whole(1, 1_000_000))
    patience: int = key(0, whole(0, 1_000_000))
    checkpoint_every: int = key(10, whole(0, 1_000_000))
    resume: str = key("", text)
    # Stage 2 by FedMeZO
    fedmezo_tune: str = key("head", tuned_part)
    fedmezo_learning_rate: float | Literal["auto"] = key("auto", number(0.0, open_low=True, word="auto"))
    fedmezo_temperature: float | Literal["auto"] = key("auto", number(0.0, open_low=True, word="auto"))
    fedmezo_epsilon: float | Literal["auto"] = key("auto", number(0.0, 1.0, open_low=True, word="auto"))
    fedmezo_num_z: int = key(1, whole(1, 1024))
    fedmezo_directions: Literal["rademacher", "gaussian"] = key("rademacher", one_of("rademacher", "gaussian"))
    fedmezo_dtype: Literal["float32", "float64", "bfloat16"] = key("float32", one_of("float32", "float64", "bfloat16"))
    fedmezo_weighting: Literal["examples", "uniform"] = key("examples", one_of("examples", "uniform"))
    fedmezo_batch_size: int = key(0, whole(0, 1_000_000))
    fedmezo_pool: int = key(0, whole(0, 2**20))
    fedmezo_clip: float = key(100.0, number(0.0))
    fedmezo_lora_rank: int = key(8, whole(1, 4096))
    fedmezo_lora_alpha: float = key(16.0, number(0.0, open_low=True))
    # Personalisation: a model of its own for every client
    personalise: str = key("none", approach_list)
    personal_epochs: int = key(20, whole(1, 100_000))
    personal_rounds: int = key(20, whole(1, 100_000))
    personal_batch_size: int = key(128, whole(1, 1_000_000))
    personal_learning_rate: float = key(0.01, number(0.0, open_low=True))
    personal_momentum: float = key(0.5, number(0.0, 1.0))
    personal_weight_decay: float = key(5e-4, number(0.0))
    alignment_weight: float = key(1.0, number(0.0))
    # Results
    output_dir: str = key("", text)
    plots: bool = key(True, flag)
    save_statistics: bool = key(True, flag)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to solve, in the order asked for."""
        return METHOD_NAMES if self.method == "all" else tuple(self.method.split(","))

    @property
    def takes_text(self) -> bool:
        """Whether the backbone is a language model."""
        name = self.backbone.removeprefix("random:")
        return name in TEXT_BACKBONES or name.startswith(TEXT_PREFIXES)

    @property
    def words(self) -> tuple[str, ...]:
        """The label words, one per class; none where there are none."""
        return tuple(self.label_words.split(",")) if self.label_words else ()

    @property
    def start_heads(self) -> tuple[str, ...]:
        """The heads that stage 2 starts from, in the order asked for; ("best",) for the most accurate one."""
        return (*self.methods, "random") if self.start_head == "all" else tuple(self.start_head.split(","))

    @property
    def personal_approaches(self) -> tuple[str, ...]:
        """The ways to personal models that are to be compared, in the order asked for."""
        named = {"none": (), "all": PERSONAL_APPROACHES}
        return named.get(self.personalise, tuple(self.personalise.split(",")))

    @property
    def server_rate(self) -> float:
        """The server's learning rate: 1 for averaging, and what the adaptive optimisers' papers found robust."""
        if self.server_learning_rate == "auto":
            return AUTO_SERVER_RATE.get(self.optimizer, 1.0)
        return self.server_learning_rate

    @property
    def mezo_epsilon(self) -> float:
        """How far FedMeZO probes: a forward pass in bfloat16 rounds so much that 0.001 would not be seen through it."""
        if self.fedmezo_epsilon == "auto":
            return 1e-2 if self.fedmezo_dtype == "bfloat16" else 1e-3
        return self.fedmezo_epsilon

    def to_run_config(self) -> dict[str, Any]:
        """Return the values under their run-config names."""
        return {name.replace("_", "-"): value for name, value in asdict(self).items()}

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, object]) -> AppConfig:
        """Check every key and return the configuration.

        Parameters
        ----------
        run_config : mapping
            Key to value; keys that are missing keep their default.

        Raises
        ------
        ConfigError
            With all problems: unknown names, wrong types, values out of range, values that exclude each other.
        """
        known = {key.name.replace("_", "-"): key for key in fields(cls)}
        problems, values = [], {}
        for name, value in run_config.items():
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                problems.append(f"{name}: no such key" + (f"; did you mean {close[0]}?" if close else ""))
                continue
            try:
                values[known[name].name] = known[name].metadata["check"](value)
            except ValueError as error:
                problems.append(f"{name}: {error}, got {value!r}")
        if not problems:
            config = cls(**values)
            problems = config._contradictions()
            if not problems:
                return config
        raise ConfigError(f"{len(problems)} problem(s) in the run configuration:\n  " + "\n  ".join(problems))

    def _contradictions(self) -> list[str]:
        problems = []
        if self.fed3r_bias and not self.fed3r_between_class:
            problems.append("fed3r-bias: true needs fed3r-between-class true, got false")
        if self.partitioner in ("natural-id", "domain") and not self.partition_column:
            problems.append(f"partition-column: partitioner {self.partitioner!r} needs one, got none")
        unsolved = [name for name in self.start_heads if name not in (*self.methods, *MADE_HEADS, "best")]
        if self.fine_tune != "none" and unsolved:
            problems.append(f"start-head: method must name {', '.join(unsolved)} too, got method {self.method!r}")
        problems += self._text_contradictions()
        if self.optimizer in ("fedavg", "fedprox") and self.server_rate != 1.0:
            problems.append(
                f"server-learning-rate: {self.optimizer} averages, which is rate 1 (fedavgm has one), "
                f"got {self.server_rate:g}"
            )
        if self.fedmezo_pool and self.fedmezo_dtype == "bfloat16":
            problems.append("fedmezo-pool: needs fedmezo-dtype float32 or float64, got bfloat16")
        if self.fine_tune == "fedmezo" and self.batch_norm != "frozen":
            problems.append(f"batch-norm: fedmezo needs frozen running statistics, got {self.batch_norm!r}")
        if self.personalise != "none" and not {"fed3r", "fedcgs"} & set(self.methods):
            problems.append(f"personalise: method must name fed3r or fedcgs, got method {self.method!r}")
        if self.resume and not is_absolute(self.resume):
            problems.append(f"resume: must be the absolute path of a run folder (or start with ~), got {self.resume!r}")
        if self.extend and not is_absolute(self.extend):
            problems.append(f"extend: must be the absolute path of a run folder (or start with ~), got {self.extend!r}")
        if self.resume and self.personalise != "none":
            problems.append(f"personalise: has no checkpoints to resume from, got {self.personalise!r} with resume")
        if self.output_dir and not is_absolute(self.output_dir):
            problems.append(f"output-dir: must be an absolute path (or start with ~), got {self.output_dir!r}")
        return problems

    def _text_contradictions(self) -> list[str]:
        problems = []
        given = {
            "text-max-length": self.text_max_length,
            "text-pooling": "" if self.text_pooling == "auto" else self.text_pooling,
            "text-template": self.text_template,
        }
        for name, value in given.items():
            if value and not self.takes_text:
                problems.append(f"{name}: is for text backbones, got {value!r} with backbone {self.backbone!r}")
        if self.text_template and self.text_pooling != "auto":
            problems.append(f"text-pooling: must be auto with text-template, got {self.text_pooling!r}")
        if self.takes_text and self.input_size:
            problems.append(f"input-size: is for images, text-max-length for texts, got {self.input_size}")
        if self.takes_text and self.flip:
            problems.append(f"flip: is for images, got true with backbone {self.backbone!r}")
        if self.label_words and not self.text_template:
            problems.append(f"label-words: need a text-template, got {self.label_words!r} without")
        if "label-words" in self.start_heads and not self.label_words:
            problems.append("start-head: label-words needs the words in label-words, got none")
        return problems
