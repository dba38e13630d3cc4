"""What a run leaves behind: a folder with results, heads and plots, and a table for the terminal.

The plots are in `fedstats_app.results.plots`, which is not imported here because it needs matplotlib.
"""

from fedstats_app.results.classifier import Classifier, load
from fedstats_app.results.communication import uplink_bytes
from fedstats_app.results.method_result import MethodResult, display_name
from fedstats_app.results.run_folder import RunFolder
from fedstats_app.results.table import results_table

__all__ = ["Classifier", "MethodResult", "RunFolder", "display_name", "load", "results_table", "uplink_bytes"]
