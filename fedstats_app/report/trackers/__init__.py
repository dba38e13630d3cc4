"""Experiment trackers of others behind one small interface: TensorBoard, MLflow and W&B, all into the run folder.

It may import options. A tracker's library is imported where one is opened, which is on the server alone.
"""
