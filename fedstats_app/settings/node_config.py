"""NodeConfig: the only reader of node-config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedstats_app.backbones.backbone_options import backbone_name, network_arguments
from fedstats_app.backbones.names import split_names
from fedstats_app.base.option import (
    ConfigError,
    Options,
    flag,
    number,
    one_of,
    option,
    some_of,
    text,
    unknown_keys,
    whole,
)
from fedstats_app.data.columns import COLUMNS
from fedstats_app.data.data_options import CacheOptions, DataOptions
from fedstats_app.data.feature_cache import default_cache_root
from fedstats_app.data.layout import FOLDER_LEVELS
from fedstats_app.methods import METHODS
from fedstats_app.secure.account import MOST_DELTA, MOST_EPSILON
from fedstats_app.training.limits import MAX_CLIENT_NAME, NO_LIMITS, RequestLimits

# On a node with data of its own, unless its owner says otherwise.
DEFAULT_MIN_CLASS_COUNT = 5
# A sum over two clients tells each of them the other's part.
LEAST_CLIENTS = 3
# Begins a data-path that names a file of `fedstats release`.
RELEASE = "release:"
# Simulations give every node a partition.
KEYS_OF_A_RELEASE = {"data-path", "client-name", "partition-id", "num-partitions"}
STATE_FOLDER = "state"
_MANY = whole(0, 1_000_000_000)


def allowed_method_list(value: object) -> tuple[str, ...] | None:
    """Return the methods that an owner allows; None for all."""
    names = str(some_of(tuple(METHODS), "all")(value))
    return None if names == "all" else tuple(names.split(","))


def backbone_list(value: object) -> tuple[str, ...]:
    """Return the backbones that an owner allows, each by its name or as ``NAME[ARGUMENTS]``; joined, each alone."""
    found = []
    for entry in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", str(value)):
        name, _, arguments = entry.strip().removesuffix("]").partition("[")
        own = str(network_arguments(arguments))
        found += [with_arguments(network, own) for network in split_names(str(backbone_name(name)))]
    return tuple(found)


def with_arguments(backbone: str, arguments: str) -> str:
    """Write a backbone with the arguments of its constructor, as an owner allows it."""
    return f"{backbone}[{arguments}]" if arguments else backbone


def least_clients(value: object) -> object:
    """Check for 0 or a number of clients whose sum hides each of them."""
    return value if value == 0 and not isinstance(value, bool) else whole(LEAST_CLIENTS, 1_000_000)(value)


def client_name(value: object) -> object:
    """Refuse what is no name that can be shown."""
    if not isinstance(value, str) or len(value) > MAX_CLIENT_NAME or not value.isprintable():
        raise ValueError(f"must be text of at most {MAX_CLIENT_NAME} printable characters")
    return value


def class_list(value: object) -> tuple[str, ...]:
    """Return the class names that an owner declares, different and none of them empty."""
    names = tuple(name.strip() for name in str(value).split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("must be different names, separated by commas")
    return names


@dataclass(frozen=True)
class NodeConfig(Options):
    """Configuration of a node: its owner's ``--node-config``, or a simulation's virtual nodes.

    Attributes
    ----------
    data_path : str
        A folder of images or text files per class, or of parquet or CSV files; or ``release:FILE``, a file that
        `fedstats release` made. It wins over a partition: the node is one client.
    partition_id, num_partitions : int or None
        The node hosts some partitions of the run's data set.
    backbone_weights : str
        Wins over the run-config key of the same name: where things lie is the node's business.
    cache_dir : str
        Wins over it too. A node with data of its own keeps features only where its owner names a place.
    min_class_count : int or None
        A class with fewer samples does not leave the node; None for what is usual (:meth:`class_floor`).
    min_gram_samples : int or None
        A Gram matrix of fewer samples does not leave the node; None for what is usual (:attr:`gram_floor`).
    allowed_methods : tuple of str or None
        The closed-form methods that the node works for; None for all.
    train : bool
        Whether messages of training are answered from data of the node's own.
    state_dir : str
        Folder of FedMeZO's replica; "" for a folder beside the feature cache.
    allowed_datasets : tuple of str
        Besides the built-in one, the data sets that a run may name on a deployed node that hosts partitions.
    image_column, text_column, label_column, label_separator, label_columns, target_column, missing_labels : str
        Of tables at ``data_path``; "" for the only one with a usual name. A run cannot choose others.
    folder_levels : str
        What the folders at ``data_path`` are. A run cannot choose that either.
    person_column, max_per_person
        Whose each sample at ``data_path`` is, and how many one person gives. A run can choose neither.
    allowed_backbones : tuple of str or None
        All that may be loaded, a network with arguments as ``NAME[ARGUMENTS]``; None for those that are known by name
        alone, without a hub, a folder or arguments.
    max_releases, max_heads : int
        How many releases are made, and different heads scored, of one version of data of its own.
    client_name : str
        By which a server knows data of the node's own again when they have changed; "" for none.
    secure_min_clients : int
        Above 0, statistics leave the node only in secure sums over at least this number of clients, and nothing else of
        its data does.
    secure_key, secure_peers : str
        Files of the node's private Ed25519 key, and of all sites' public ones; "" for none.
    dp_max_epsilon, dp_max_delta : float or None
        What all sums with noise, of all versions of the data together, may tell of one sample, or of one person where
        these are named; then nothing else is answered. None for no account.
    dp_classes : tuple of str
        That the owner declares, so that their list says nothing of the data; () for none.
    release : str
        The file of a ``data_path`` that names one.
    any_app : bool
        Whether any app's code runs here: `fedstats node --any-app`. No owner's key.
    deployed : bool
        Whether the node may be another's than the server: `fedstats node`. Always so on data of its own. No
        owner's key.
    """

    data_path: str = option("", str)
    partition_id: int | None = option(None, _MANY)
    num_partitions: int | None = option(None, whole(1, 1_000_000_000))
    backbone_weights: str = option("", str)
    cache_dir: str = option("", str)
    min_class_count: int | None = option(None, _MANY)
    min_gram_samples: int | None = option(None, _MANY)
    allowed_methods: tuple[str, ...] | None = option(None, allowed_method_list)
    train: bool = option(False, flag)
    state_dir: str = option("", str)
    allowed_datasets: tuple[str, ...] = option((), lambda value: tuple(str(value).split(",")))
    image_column: str = option("", text)
    text_column: str = option("", text)
    label_column: str = option("", text)
    label_separator: str = option("", text)
    label_columns: str = option("", text)
    target_column: str = option("", text)
    missing_labels: str = option("unknown", one_of("unknown", "negative"))
    folder_levels: str = option("auto", one_of(*FOLDER_LEVELS))
    person_column: str = option("", text)
    max_per_person: int = option(50, whole(1, 1_000_000_000))
    allowed_backbones: tuple[str, ...] | None = option(None, backbone_list)
    max_releases: int = option(8, _MANY)
    max_heads: int = option(32, _MANY, key="max-heads-scored")
    client_name: str = option("", client_name)
    secure_min_clients: int = option(0, least_clients)
    secure_key: str = option("", str)
    secure_peers: str = option("", str)
    dp_max_epsilon: float | None = option(None, number(0.0, MOST_EPSILON, open_low=True))
    dp_max_delta: float | None = option(None, number(0.0, MOST_DELTA, open_low=True))
    dp_classes: tuple[str, ...] = option((), class_list)
    release: str = ""
    any_app: bool = False
    deployed: bool = False

    def data_options(self, run: DataOptions) -> DataOptions:
        """Return a run's options with this node's columns and persons, and all of its data."""
        names = (*COLUMNS, "missing_labels", "folder_levels", "person_column", "max_per_person")
        own = {name: getattr(self, name) for name in names}
        return replace(run, **own, classes="", left_out_domain="")

    @property
    def request_limits(self) -> RequestLimits:
        """Limits of one request: the usual ones for data of its own, none in a simulation."""
        return RequestLimits() if self.data_path else NO_LIMITS

    @property
    def is_owners(self) -> bool:
        """True if an owner, not the run, decides which files are read and written on the node."""
        return bool(self.data_path) or self.deployed

    def class_floor(self, requested: int) -> int:
        """Return how many samples a class must have to leave: the node's own floor, which the run's can only raise.

        By default 5 on a node with data of its own, none in a simulation.
        """
        usual = DEFAULT_MIN_CLASS_COUNT if self.data_path else 0
        return max(usual if self.min_class_count is None else self.min_class_count, requested)

    @property
    def gram_floor(self) -> int | None:
        """Samples behind a Gram matrix: as the owner says, else twice the dimension (None), or 0 in a simulation."""
        return self.min_gram_samples if self.min_gram_samples is not None or self.data_path else 0

    def cache_root(self, options: CacheOptions) -> Path | None:
        """Return the feature cache's folder, or None.

        A run can only do without it. There is one in a simulation, and on a node with data of its own if its owner
        names a ``cache-dir``: features are as personal as the images.
        """
        none = options.feature_cache == "off" or (self.data_path and not self.cache_dir)
        return None if none else self.engine_root(options)

    def engine_root(self, options: CacheOptions) -> Path:
        """Return the folder of networks exported to an engine: copies of weights that the node has, nothing of data."""
        # Nor does a run say where files go on a machine that is not its own.
        folder = self.cache_dir or ("" if self.is_owners else options.cache_dir)
        return Path(folder).expanduser() if folder else default_cache_root()

    def state_root(self, options: CacheOptions) -> Path:
        """Return the folder of what must last on a node between messages of a run, such as a client's own model."""
        return Path(self.state_dir).expanduser() if self.state_dir else self.engine_root(options) / STATE_FOLDER

    def without_partition(self) -> NodeConfig:
        """Return what all virtual nodes of a machine have in common."""
        return replace(self, partition_id=None, num_partitions=None)

    @property
    def trains(self) -> bool:
        """True if training may use the node's samples: in a simulation, else where the owner says so."""
        return self.train or not (self.data_path or self.release)

    @classmethod
    def from_node_config(cls, node_config: Mapping[str, object]) -> NodeConfig:
        """Check the keys that this app reads and return them.

        Raises
        ------
        ConfigError
            If there is neither data-path nor a partition, a key is unknown, or a value is not allowed.
        """
        if "approved-apps" in node_config:
            # The command leaves it out when it has seen to it.
            raise ConfigError("node-config: approved-apps is for `fedstats node`: flower-supernode runs any app")
        any_app, deployed = (node_config.get(key) is True for key in ("any-app", "deployed"))
        node_config = {key: value for key, value in node_config.items() if key not in ("any-app", "deployed")}
        try:
            if unknown := list(unknown_keys(node_config, cls.keys())):
                raise ConfigError("\n".join(unknown))
            ignored = sorted(node_config.keys() - KEYS_OF_A_RELEASE)
            if ignored and str(node_config.get("data-path")).startswith(RELEASE):
                raise ConfigError(f"{', '.join(ignored)}: not for a node that serves a release")
            node = replace(cls.read(node_config), any_app=any_app, deployed=deployed)
        except ConfigError as error:
            raise ConfigError("\n".join(f"node-config: {line}" for line in str(error).splitlines())) from error
        if node.data_path.startswith(RELEASE):
            node = replace(node, data_path="", release=node.data_path.removeprefix(RELEASE))
        if bool(node.secure_key) != bool(node.secure_peers):
            raise ConfigError("node-config: secure-key goes with secure-peers")
        if node.dp_max_epsilon is not None and not (node.data_path and node.dp_max_delta and node.dp_classes):
            raise ConfigError("node-config: dp-max-epsilon goes with data-path, dp-max-delta and dp-classes")
        if node.dp_max_epsilon is None and node.dp_max_delta is not None:
            raise ConfigError("node-config: dp-max-delta goes with dp-max-epsilon")
        if node.data_path or node.release:
            return node.without_partition()
        if node.partition_id is None or node.num_partitions is None:
            raise ConfigError(
                "node-config: must name data-path (a folder of this node's own images, or release:FILE), or "
                f"partition-id and num-partitions, got the keys {sorted(node_config)}"
            )
        return node
