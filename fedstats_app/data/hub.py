"""Data sets of images or texts from the Hugging Face hub."""

import hashlib

from fedstats_app.data.dataset import Dataset, DatasetError
from fedstats_app.data.splits import choose_splits
from fedstats_app.data.table import ColumnChoice, quiet_progress, table_dataset

_HUB_TIMEOUT_SECONDS = 20.0
_OFFLINE_HELP = (
    "If it was downloaded on this machine before, set HF_HUB_OFFLINE=1 in the environment; else download it where the "
    "hub can be reached, copy its parquet files here and use parquet:<absolute path of their folder>"
)


def load_hub(name: str, split: str, columns: ColumnChoice) -> Dataset | None:
    """Load a data set of images or texts from the Hugging Face hub through flwr-datasets, in the hub's order.

    The splits are those called ``train`` and ``test`` on the hub, or those of `choose_splits`. With
    ``HF_HUB_OFFLINE=1`` in the environment only what was downloaded before is used, and nothing is asked of the
    network; without it, the hub is asked once for the data set before anything is loaded, so that a machine that cannot
    reach it hears so within seconds.

    Parameters
    ----------
    name : str
        The data set's name on the hub, such as ``uoft-cs/cifar10``.
    split : {"train", "test"}
        Which part.
    columns : ColumnChoice
        The user's.

    Returns
    -------
    Dataset or None
        None if the test split is asked for and there is none.

    Raises
    ------
    DatasetError
        If the hub cannot be reached or has no such data set, or for what `choose_column` and `read_labels` refuse.
    """
    spec = f"hub:{name}"
    _ask_hub(name, spec)
    from flwr_datasets import FederatedDataset

    federated = FederatedDataset(dataset=name, partitioners={}, shuffle=False)
    try:
        with quiet_progress():
            tables = {"train": federated.load_split("train")}
            chosen = choose_splits(tables["train"].info.splits or tables)
            if split == "test":
                if chosen.test is None:
                    return None
                tables["test"] = federated.load_split(chosen.test)
    except OSError as error:
        raise DatasetError(f"{spec}: cannot be loaded ({type(error).__name__}: {error}). {_OFFLINE_HELP}") from error
    except (ValueError, RuntimeError) as error:
        raise DatasetError(f"{spec}: cannot be loaded ({type(error).__name__}: {error})") from error
    # The fingerprint that the library itself names its cache files by: it changes with the revision on the hub.
    fingerprint = hashlib.sha256(f"hub {name} {split} {tables[split]._fingerprint}".encode()).hexdigest()
    return table_dataset(spec, split, tables, columns, fingerprint, notes=chosen.notes)


def _ask_hub(name: str, spec: str) -> None:
    """Find out in bounded time whether the hub has a data set; the loader itself retries for half a minute or more."""
    import httpx
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return
    try:
        HfApi().dataset_info(name, timeout=_HUB_TIMEOUT_SECONDS)
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise DatasetError(
            f"{spec}: {constants.ENDPOINT} does not give this data set ({type(error).__name__}: {error}). "
            f"{_OFFLINE_HELP}"
        ) from error
