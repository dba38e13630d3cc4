"""Zeroth-order tuning: directions, perturbed evaluations, replicas that follow a log of scalars."""
