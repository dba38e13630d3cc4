"""What a run leaves behind: a folder with results, heads and plots, and a table for the terminal.

The plots are in `fedstats_app.results.plots`, which is not imported here because it needs matplotlib.
"""

from fedstats_app.results.communication import uplink_bytes
from fedstats_app.results.compute import forward_passes, training_bytes
from fedstats_app.results.model_card import model_card, write_model_card
from fedstats_app.results.run_folder import RunFolder
from fedstats_app.results.table import results_table
from fedstats_app.results.training_table import training_table

__all__ = [
    "RunFolder",
    "forward_passes",
    "model_card",
    "results_table",
    "training_bytes",
    "training_table",
    "uplink_bytes",
    "write_model_card",
]
