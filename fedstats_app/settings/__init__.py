"""The one reader of run-config and node-config, and what an option is (`option`, which every room may import).

Importing the room imports nothing. `option` imports the standard library alone; the readers may import
the options of every room below them, but neither torch nor Flower.
"""
