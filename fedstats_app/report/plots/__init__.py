"""Plots of a run as PNG, without a display and outside the main thread (no pyplot). May import what results may."""
