"""AppConfig: the only reader of run-config and node-config. All errors are reported together, before any work."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

METHOD_NAMES = ("fedncm", "fed3r", "fedcof", "fedcgs")
BACKBONES = (
    "efficientnet_lite0",
    "squeezenet1_1",
    "mobilenet_v2",
    "resnet18",
    "resnet50",
    "efficientnet_b0",
    "vit_b_16",
    "vit_b_32",
    "tiny",
)
# Heads to start from that no statistics are needed for.
MADE_HEADS = ("random", "zero")
OPTIMIZER_NAMES = ("fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadam-torch")
# Server learning rates where "auto" stands; 1, plain averaging, for the others.
AUTO_SERVER_RATE = {"fedadam": 0.01, "fedyogi": 0.01, "fedadam-torch": 0.001}
# Ways to a model of one's own for every client, and what they are compared with.
PERSONAL_APPROACHES = ("global", "local-only", "one-shot", "one-shot-sum", "fedavg-ft", "fedproto", "closed-form")
PARTITIONERS = ("iid", "dirichlet", "pathological", "natural-id", "domain", "fedcof", "fedcgs", "fedpac")

# A check returns the value in its final type, or raises ValueError saying what is allowed.
Check = Callable[[object], object]


class ConfigError(ValueError):
    """Every problem of a configuration, one per line."""


def _one_of(*allowed: str) -> Check:
    def check(value: object) -> object:
        if value not in allowed:
            close = difflib.get_close_matches(str(value), allowed, n=1)
            raise ValueError(f"must be one of {', '.join(allowed)}" + (f" (did you mean {close[0]}?)" if close else ""))
        return value

    return check


def _text(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def _flag(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _whole(low: int, high: int) -> Check:
    def check(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return check


def _number(
    low: float, high: float = math.inf, *, open_low: bool = False, word: str = "", infinite: bool = False
) -> Check:
    """Return a check for a number, as a number or as text, or for one word."""

    def check(value: object) -> object:
        if word and value == word:
            return value
        bracket = "(" if open_low else "["
        allowed = f"a number in {bracket}{low:g}, {high:g}{']' if infinite or not math.isinf(high) else ')'}"
        try:
            if isinstance(value, bool):
                raise ValueError
            number = float(value)  # type: ignore[arg-type]  # whatever cannot be converted raises
        except (TypeError, ValueError):
            number = math.nan
        inside = low < number <= high if open_low else low <= number <= high
        if not inside or (math.isinf(number) and not infinite):
            raise ValueError(f"must be {allowed}" + (f' or "{word}"' if word else ""))
        return number

    return check


def _methods(value: object) -> object:
    names = METHOD_NAMES if value == "all" else tuple(name.strip() for name in str(value).split(","))
    unknown = [name for name in names if name not in METHOD_NAMES]
    if unknown or len(set(names)) != len(names):
        raise ValueError(f"must be all, or some of {', '.join(METHOD_NAMES)}, separated by commas")
    return "all" if value == "all" else ",".join(names)


def _approaches(value: object) -> object:
    names = tuple(name.strip() for name in str(value).split(","))
    if value not in ("none", "all") and (not set(names) <= set(PERSONAL_APPROACHES) or len(set(names)) != len(names)):
        raise ValueError(f"must be none, all, or some of {', '.join(PERSONAL_APPROACHES)}, separated by commas")
    return ",".join(names)


def _start_heads(value: object) -> object:
    names = tuple(name.strip() for name in str(value).split(","))
    allowed = (*METHOD_NAMES, *MADE_HEADS)
    if value not in ("best", "all") and (not set(names) <= set(allowed) or len(set(names)) != len(names)):
        raise ValueError(f"must be best, all, or some of {', '.join(allowed)}, separated by commas")
    return ",".join(names)


def _dataset(value: object) -> object:
    kind, _, where = str(value).partition(":")
    if not (value == "builtin" or (kind in ("hub", "folder", "parquet") and where)):
        raise ValueError("must be builtin, hub:NAME, folder:/PATH or parquet:/PATH")
    if kind in ("folder", "parquet") and not _is_absolute(where):
        # The app does not run in the user's folder, so a relative path would lead somewhere else.
        raise ValueError("must name an absolute path (or one that starts with ~)")
    return value


def _is_absolute(path: str) -> bool:
    return path.startswith(("/", "~", "\\\\")) or path[1:2] == ":"


def _empty_or(check: Check) -> Check:
    return lambda value: value if value == "" else check(value)


def _device(value: object) -> object:
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
        raise ValueError("must be auto, cpu, cuda, cuda:N or mps")
    return value


def _backbone(value: object) -> object:
    name = str(value).removeprefix("random:")
    if not (name in BACKBONES or (name.startswith("timm:") and name != "timm:")):
        close = difflib.get_close_matches(name, BACKBONES, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ValueError(f"must be one of {', '.join(BACKBONES)}, timm:NAME or random:NAME{hint}")
    return value


def _key(default: object, check: Check) -> Any:
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True)
class AppConfig:
    """Every run-config key, with underscores for hyphens; what each means stands in pyproject.toml."""

    method: str = _key("all", _methods)
    seed: int = _key(0, _whole(0, 2**31 - 1))
    # Data
    dataset: str = _key("builtin", _dataset)
    test_dataset: str = _key("", _empty_or(_dataset))
    image_column: str = _key("", _text)
    label_column: str = _key("", _text)
    holdout_fraction: float = _key(0.2, _number(0.0, 0.9, open_low=True))
    num_clients: int = _key(100, _whole(1, 1_000_000))
    partitioner: str = _key("dirichlet", _one_of(*PARTITIONERS))
    dirichlet_alpha: float = _key(0.1, _number(0.0, open_low=True))
    partition_column: str = _key("", _text)
    classes_per_client: int = _key(2, _whole(1, 1_000_000))
    partition_uniform_share: float = _key(0.2, _number(0.0, 1.0))
    # Backbone
    backbone: str = _key("efficientnet_lite0", _backbone)
    backbone_weights: str = _key("", _text)
    input_size: int = _key(0, _whole(0, 4096))
    batch_size: int = _key(16, _whole(1, 4096))
    device: str = _key("auto", _device)
    autocast: str = _key("none", _one_of("none", "bf16", "fp16"))
    channels_last: bool = _key(True, _flag)
    feature_cache: str = _key("auto", _one_of("auto", "on", "off"))
    cache_dir: str = _key("", _text)
    # Methods
    ridge_lambda: float | Literal["auto"] = _key("auto", _number(0.0, word="auto"))
    fed3r_between_class: bool = _key(True, _flag)
    fed3r_bias: bool = _key(False, _flag)
    fed3r_solver: Literal["cholesky", "pinv32"] = _key("cholesky", _one_of("cholesky", "pinv32"))
    fed3r_random_features: int = _key(0, _whole(0, 100_000))
    fed3r_kernel_width: float | Literal["auto"] = _key("auto", _number(0.0, open_low=True, word="auto"))
    fedcof_shrinkage: float | Literal["auto"] = _key("auto", _number(0.0, word="auto", infinite=True))
    fedcof_between_class: bool = _key(False, _flag)
    fedcof_means_per_class: int = _key(1, _whole(1, 10_000))
    fedcgs_covariance: Literal["total", "within"] = _key("total", _one_of("total", "within"))
    fedcgs_shrinkage: float = _key(0.01, _number(0.0))
    fedcgs_random_features: int = _key(0, _whole(0, 100_000))
    fedcgs_activation: str = _key("relu", _one_of("relu", "tanh", "identity"))
    mask_absent: bool = _key(True, _flag)
    # Federation
    wire_dtype: str = _key("float32", _one_of("float32", "float64"))
    fraction_train: float = _key(1.0, _number(0.0, 1.0, open_low=True))
    min_clients: int = _key(2, _whole(1, 1_000_000))
    wait_timeout: float = _key(120.0, _number(0.0, 1e7, open_low=True))
    settle_seconds: float = _key(10.0, _number(0.0, 1e7))
    reply_timeout: float = _key(600.0, _number(0.0, 1e7, open_low=True))
    window_megabytes: int = _key(128, _whole(1, 100_000))
    min_class_count: int = _key(0, _whole(0, 1_000_000))
    extend: str = _key("", _text)
    # Stage 2: training from the head
    fine_tune: Literal["none", "full", "probe", "features"] = _key(
        "none", _one_of("none", "full", "probe", "features")
    )
    start_head: str = _key("best", _start_heads)
    optimizer: str = _key("fedavg", _one_of(*OPTIMIZER_NAMES))
    num_server_rounds: int = _key(20, _whole(1, 1_000_000))
    fraction_tune: float = _key(1.0, _number(0.0, 1.0, open_low=True))
    local_epochs: int = _key(1, _whole(1, 100_000))
    train_batch_size: int = _key(16, _whole(1, 1_000_000))
    learning_rate: float = _key(0.01, _number(0.0, open_low=True))
    momentum: float = _key(0.0, _number(0.0, 1.0))
    weight_decay: float = _key(0.0, _number(0.0))
    flip: bool = _key(False, _flag)
    server_learning_rate: float | Literal["auto"] = _key("auto", _number(0.0, open_low=True, word="auto"))
    server_momentum: float = _key(0.9, _number(0.0, 1.0))
    proximal_mu: float = _key(0.01, _number(0.0))
    temperature: float = _key(1.0, _number(0.0, open_low=True))
    tune_bias: bool = _key(True, _flag)
    batch_norm: Literal["frozen", "kept", "averaged", "groupnorm"] = _key(
        "frozen", _one_of("frozen", "kept", "averaged", "groupnorm")
    )
    evaluate_every: int = _key(1, _whole(1, 1_000_000))
    patience: int = _key(0, _whole(0, 1_000_000))
    checkpoint_every: int = _key(10, _whole(0, 1_000_000))
    resume: str = _key("", _text)
    # Personalisation: a model of its own for every client
    personalise: str = _key("none", _approaches)
    personal_epochs: int = _key(20, _whole(1, 100_000))
    personal_rounds: int = _key(20, _whole(1, 100_000))
    personal_batch_size: int = _key(128, _whole(1, 1_000_000))
    personal_learning_rate: float = _key(0.01, _number(0.0, open_low=True))
    personal_momentum: float = _key(0.5, _number(0.0, 1.0))
    personal_weight_decay: float = _key(5e-4, _number(0.0))
    alignment_weight: float = _key(1.0, _number(0.0))
    # Results
    output_dir: str = _key("", _text)
    plots: bool = _key(True, _flag)
    save_statistics: bool = _key(True, _flag)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to solve, in the order asked for."""
        return METHOD_NAMES if self.method == "all" else tuple(self.method.split(","))

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
        if self.optimizer in ("fedavg", "fedprox") and self.server_rate != 1.0:
            problems.append(
                f"server-learning-rate: {self.optimizer} averages, which is rate 1 (fedavgm has one), "
                f"got {self.server_rate:g}"
            )
        if self.personalise != "none" and not {"fed3r", "fedcgs"} & set(self.methods):
            problems.append(f"personalise: method must name fed3r or fedcgs, got method {self.method!r}")
        if self.resume and not _is_absolute(self.resume):
            problems.append(f"resume: must be the absolute path of a run folder (or start with ~), got {self.resume!r}")
        if self.extend and not _is_absolute(self.extend):
            problems.append(f"extend: must be the absolute path of a run folder (or start with ~), got {self.extend!r}")
        if self.resume and self.personalise != "none":
            problems.append(f"personalise: has no checkpoints to resume from, got {self.personalise!r} with resume")
        if self.output_dir and not _is_absolute(self.output_dir):
            problems.append(f"output-dir: must be an absolute path (or start with ~), got {self.output_dir!r}")
        return problems


# What a node's owner can allow besides the closed-form methods: all that trains on the node.
TRAINING = "training"
# On a node with data of its own, unless its owner says otherwise.
DEFAULT_MIN_CLASS_COUNT = 5


def _allowed_methods(value: object) -> tuple[str, ...] | None:
    """Return the methods that an owner allows; None for all."""
    names = tuple(name.strip() for name in str(value).split(","))
    allowed = (*METHOD_NAMES, TRAINING)
    if value != "all" and (not set(names) <= set(allowed) or len(set(names)) != len(names)):
        raise ValueError(f"must be all, or some of {', '.join(allowed)}, separated by commas")
    return None if value == "all" else names


@dataclass(frozen=True)
class NodeConfig:
    """What a SuperNode's owner says in ``--node-config``, or what a simulation says of its virtual nodes.

    Attributes
    ----------
    data_path : str
        A folder of images per class, or of parquet files. It wins over a partition: the node is one client.
    partition_id, num_partitions : int or None
        The node hosts some partitions of the run's data set.
    backbone_weights, cache_dir : str
        Win over the run-config keys of the same names: where things lie is the node's business.
    trains : bool
        ``train``: false on a node that cannot train (memory, power); it is used for statistics and evaluation only.
    min_class_count : int or None
        A class with fewer samples does not leave the node; None for what is usual (:meth:`class_floor`).
    min_gram_samples : int
        A Gram matrix of fewer samples does not leave the node.
    allowed_methods : tuple of str or None
        The closed-form methods, and "training", that the node works for; None for all.
    state_dir : str
        Where a personal model lasts from round to round; "" for a folder beside the feature cache.
    """

    data_path: str = ""
    partition_id: int | None = None
    num_partitions: int | None = None
    backbone_weights: str = ""
    cache_dir: str = ""
    trains: bool = True
    min_class_count: int | None = None
    min_gram_samples: int = 0
    allowed_methods: tuple[str, ...] | None = None
    state_dir: str = ""

    def class_floor(self, config: AppConfig) -> int:
        """Return how many samples a class must have to leave: the node's own floor, which a run can only raise.

        By default 5 on a node with data of its own, none in a simulation.
        """
        usual = DEFAULT_MIN_CLASS_COUNT if self.data_path else 0
        return max(usual if self.min_class_count is None else self.min_class_count, config.min_class_count)

    @classmethod
    def from_node_config(cls, node_config: Mapping[str, object]) -> NodeConfig:
        """Check the keys that this app reads and return them.

        Raises
        ------
        ConfigError
            If there is neither data-path nor a partition, or a value is not allowed.
        """
        data_path = str(node_config.get("data-path", ""))
        partition_id, num_partitions = node_config.get("partition-id"), node_config.get("num-partitions")
        paths = {name: str(node_config.get(name, "")) for name in ("backbone-weights", "cache-dir", "state-dir")}
        trains = node_config.get("train", True)
        if not isinstance(trains, bool):
            raise ConfigError(f"node-config: train must be true or false, got {trains!r}")
        more = {**_node_policy(node_config), "state_dir": paths["state-dir"]}
        if data_path:
            return cls(data_path, None, None, paths["backbone-weights"], paths["cache-dir"], trains, **more)
        if partition_id is None or num_partitions is None:
            raise ConfigError(
                "node-config: must name data-path (a folder of this node's own images), or partition-id and "
                f"num-partitions, got the keys {sorted(node_config)}"
            )
        if not isinstance(partition_id, int) or not isinstance(num_partitions, int):
            raise ConfigError(
                f"node-config: partition-id and num-partitions must be whole numbers, "
                f"got {partition_id!r} and {num_partitions!r}"
            )
        return cls("", partition_id, num_partitions, paths["backbone-weights"], paths["cache-dir"], trains, **more)


def _node_policy(node_config: Mapping[str, object]) -> dict[str, Any]:
    """Return what the owner says of what may leave the node."""
    checks: dict[str, Check] = {
        "min-class-count": _whole(0, 1_000_000_000),
        "min-gram-samples": _whole(0, 1_000_000_000),
        "allowed-methods": _allowed_methods,
    }
    policy = {}
    for name, check in checks.items():
        if name not in node_config:
            continue
        try:
            policy[name.replace("-", "_")] = check(node_config[name])
        except ValueError as error:
            raise ConfigError(f"node-config: {name}: {error}, got {node_config[name]!r}") from error
    return policy
