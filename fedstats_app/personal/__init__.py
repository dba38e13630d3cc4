"""Ways from a finished first stage to a model for every client, side by side.

It may import strategies, grid and what stands below them; importing the room itself imports neither torch nor Flower.
"""
