import numpy as np
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedstats_app.wire import guard, read_statistics_request, statistics_reply

app = ClientApp(mods=[guard])  # optional: this mod turns errors into answers that name them


def own_data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (n, d) features and (n,) labels: yours, of any images and any network."""
    if "features" in context.node_config:  # a SuperNode whose owner names a file
        data = np.load(str(context.node_config["features"]))
        return torch.from_numpy(data["features"]), torch.from_numpy(data["labels"])
    draw = torch.Generator().manual_seed(int(context.node_config["partition-id"]))  # a simulation
    labels = torch.arange(30) % 3
    return torch.nn.functional.one_hot(labels, 8) + torch.rand(30, 8, generator=draw), labels


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    features, labels = own_data(context)  # better: samples that are not in the statistics
    head = msg.content["arrays"].to_torch_state_dict()
    right = (features.double() @ head["weight"].T + head["bias"]).argmax(dim=1) == labels
    metrics = MetricRecord({"accuracy": float(right.double().mean()), "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


@app.query("statistics")
def statistics(msg: Message, context: Context) -> Message:
    request = read_statistics_request(msg)
    return statistics_reply(msg, request.statistics(*own_data(context)))
