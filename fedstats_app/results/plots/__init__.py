"""Plots of a run as PNG. They draw without a display and outside the main thread (no pyplot)."""

from fedstats_app.results.plots.accuracy import CostPoint, plot_accuracy_vs_megabytes
from fedstats_app.results.plots.confusion import plot_confusion_matrix
from fedstats_app.results.plots.fine_tuning import plot_training
from fedstats_app.results.plots.labels import plot_label_distribution
from fedstats_app.results.plots.write import write_plots

__all__ = [
    "CostPoint",
    "plot_accuracy_vs_megabytes",
    "plot_confusion_matrix",
    "plot_label_distribution",
    "plot_training",
    "write_plots",
]
