"""Atomic files, tensor files and checkpoints, options and their checks, threads and progress: used by every other room.

It may import nothing else of the package.
"""
