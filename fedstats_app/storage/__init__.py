"""The ground floor for whoever keeps something: atomic files, tensor files, checkpoints.

It may import nothing of the package.
"""
