"""Replies of the size that is asked for."""

from __future__ import annotations

import numpy as np
import torch  # noqa: F401  # an app that computes anything imports it
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query("clients")
def clients(msg: Message, context: Context) -> Message:
    """Answer with nothing."""
    return Message(RecordDict({"node": MetricRecord({"there": 1})}), reply_to=msg)


@app.query("statistics")
def statistics(msg: Message, context: Context) -> Message:
    """Answer with arrays of ones for each client."""
    settings = context.run_config
    number = int(settings["arrays"])
    values = np.ones(max(int(1000 * float(settings["kilobytes"]) / 4 / number), 1), dtype=np.float32)
    clients, content = msg.content["asked"]["clients"], RecordDict()
    assert isinstance(clients, int)
    for client in range(clients):
        content[f"{client}.arrays"] = ArrayRecord({str(index): Array(values) for index in range(number)})
        content[f"{client}.metrics"] = MetricRecord({"num-examples": 1})
    return Message(content, reply_to=msg)
