from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from safetensors.numpy import save_file

from fedstats_app.strategies import Fed3R

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Fed3R(num_classes=3, ridge_lambda="auto", min_clients=2, settle_seconds=1.0)
    result = strategy.start(grid)
    save_file({name: array.numpy() for name, array in result.arrays.items()}, Path.home() / "head.safetensors")
    for outcome in strategy.outcomes:
        print(outcome.outcome, outcome.num_examples, outcome.reason)
