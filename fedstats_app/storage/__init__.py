"""Atomic files, tensor files and checkpoints, used by every room that writes to disk.

It may import nothing of the package.
"""
