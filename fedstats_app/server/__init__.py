"""The stages of a run, what they share, and what a user sees of them.

It may import config and what stands below it, but nothing of client or cli.
"""
