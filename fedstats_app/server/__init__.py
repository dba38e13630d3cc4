"""Stages of a run, their shared state and their output.

It may import config and what stands below it, but nothing of client or cli.
"""
