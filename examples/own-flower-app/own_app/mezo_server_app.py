from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load_file

from fedstats_app.strategies import FedMeZO

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    head = ArrayRecord(load_file(Path.home() / "head.safetensors"))  # of Fed3R, for example
    strategy = FedMeZO(num_classes=3, min_clients=2, settle_seconds=1.0)
    result = strategy.start(grid, initial_arrays=head, num_rounds=20)
    print(len(strategy.log), sorted(result.arrays))  # a head as before
