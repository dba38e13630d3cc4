"""Asks all SuperNodes once which clients they have, then for as many replies as there are clients, a few at a time."""

from __future__ import annotations

import time

import numpy as np
import torch  # noqa: F401  # an app that computes anything imports it
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()
POLL_SECONDS = 0.02


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Send and receive, and say how long it took."""
    settings, started = context.run_config, time.monotonic()
    at_a_time = int(settings["messages-at-a-time"])
    nodes = _nodes(grid)
    _exchange(grid, [Message(RecordDict(), node, "query.clients") for node in nodes], at_a_time)
    number, together = int(settings["num-clients"]), int(settings["clients-per-message"])
    sizes = [min(together, number - first) for first in range(0, number, together)]
    values = np.ones(int(1000 * float(settings["request-kilobytes"]) / 4), dtype=np.float32)
    sent = {"arrays": ArrayRecord({"0": Array(values)})} if len(values) else {}
    seconds: list[float] = []
    for server_round in range(int(settings["rounds"])):
        began = time.monotonic()
        messages = [
            Message(
                RecordDict({"asked": ConfigRecord({"clients": size}), **sent}),
                nodes[index % len(nodes)],
                "query.statistics",
                group_id=str(server_round),
            )
            for index, size in enumerate(sizes)
        ]
        _exchange(grid, messages, at_a_time)
        seconds.append(round(time.monotonic() - began, 4))
    print(f"[do-nothing] seconds of a round: {seconds}")
    print(f"[do-nothing] {len(sizes)} messages a round, {time.monotonic() - started:.2f} s", flush=True)


def _nodes(grid: Grid) -> list[int]:
    """Return the SuperNodes once no new one has come for half a second."""
    known: list[int] = []
    while True:
        now = sorted(grid.get_node_ids())
        if now and now == known:
            return now
        known = now
        time.sleep(0.5)


def _exchange(grid: Grid, messages: list[Message], at_a_time: int) -> None:
    """Keep a few messages outstanding until all are answered."""
    waiting: set[str] = set()
    left = list(reversed(messages))
    while left or waiting:
        now = [left.pop() for _ in range(min(at_a_time - len(waiting), len(left)))]
        waiting |= {*grid.push_messages(now)} if now else set()
        answered = {reply.metadata.reply_to_message_id for reply in grid.pull_messages(list(waiting))}
        waiting -= answered
        if not answered:
            time.sleep(POLL_SECONDS)
