"""The one reader of run-config and node-config.

Importing the room imports nothing. The readers may import the options of every room below them, but neither torch nor
Flower.
"""
