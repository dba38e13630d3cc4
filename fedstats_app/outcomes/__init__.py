"""Plain values that say what became of a client, a method, a training or a personal model.

It may import heads and what stands below them.
"""
