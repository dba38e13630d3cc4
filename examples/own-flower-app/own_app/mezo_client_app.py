from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstats_app.client.own_replica import mezo_answer
from fedstats_app.wire import guard

app = ClientApp(mods=[guard])


@app.train("mezo")
def mezo(msg: Message, context: Context) -> Message:
    file = Path(str(context.node_config["features"]))
    data = np.load(file)
    return mezo_answer(msg, data["features"], data["labels"], folder=file.parent / f"{file.stem}-mezo")
