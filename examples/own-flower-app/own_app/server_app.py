from pathlib import Path

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from safetensors.numpy import save_file

from fedstats_app.strategies import Fed3R

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Fed3R(num_classes=3, ridge_lambda="auto", min_clients=2, settle_seconds=1.0)
    result = strategy.start(grid, evaluate_config=ConfigRecord())
    save_file({name: array.numpy() for name, array in result.arrays.items()}, file := Path.home() / "head.safetensors")
    for outcome in strategy.outcomes:
        print(outcome.outcome, outcome.num_examples, outcome.reason)
    print(f"{strategy.head} is in {file}; accuracy {result.evaluate_metrics_clientapp[1]['accuracy']:.3f}")
