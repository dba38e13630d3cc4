"""Answers of a node to each message: its data and split, features, replica, a model of its own.

It may import config and what stands below it, but nothing of results.
"""
