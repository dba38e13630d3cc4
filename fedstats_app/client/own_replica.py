"""FedMeZO's answers of a ClientApp of one's own: any model, on inputs that it reads itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flwr.app import Message
from torch import Tensor, nn

from fedstats_app.client.replica import PREFIX, NodeReplica
from fedstats_app.fedmezo.setup import MezoSetup, load_start
from fedstats_app.statistics.accumulation import ArrayLike, as_tensor
from fedstats_app.training.samples import TensorSamples
from fedstats_app.wire.mezo import mezo_reply, read_mezo_request


def mezo_answer(
    msg: Message,
    inputs: ArrayLike,
    labels: ArrayLike,
    folder: Path | str,
    model: nn.Module | None = None,
    *,
    batch_size: int = 64,
) -> Message:
    """Answer a message of :class:`fedstats_app.strategies.FedMeZO`, ``train.mezo``.

    No policy of a node's owner applies: what may leave is decided by the caller.

    Parameters
    ----------
    msg : Message
        The message.
    inputs, labels : Tensor or ndarray
        (n, ...) and (n,) int64 in [0, C): the client's samples, the same in every round.
    folder : Path or str
        Of this client alone; the replica is kept there from message to message.
    model : nn.Module, optional
        As the server's, on any device; it is tuned in place. By default a linear layer on inputs (n, d).
    batch_size : int
        Samples of a forward pass, which decides memory and speed.

    Raises
    ------
    RejectedRequest
        If the server's start does not fit the model.
    """
    request = read_mezo_request(msg)
    samples = TensorSamples(as_tensor(inputs), as_tensor(labels))

    def at_start(setup: MezoSetup, start: Mapping[str, Tensor]) -> tuple[nn.Module, int]:
        tuned = nn.Linear(inputs.shape[1], setup.request.num_classes) if model is None else model
        return load_start(tuned, start), batch_size

    path = Path(folder) / f"{PREFIX}{msg.metadata.run_id}-{request.training}"
    replica = NodeReplica(path, lambda client, setup: (samples, 0), at_start, shared=False)
    with replica.nothing_kept_if_refused():
        return mezo_reply(msg, replica.answer(request, None))
