"""What can train from a solved head: one record per trainer, and how the server runs it.

It may import strategies, results and what stands below them; importing the room imports neither torch nor Flower.
"""
