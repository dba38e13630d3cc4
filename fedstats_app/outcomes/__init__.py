"""Plain values that say what became of a client, a method, a training or a personal model, and what training costs.

It may import heads and what stands below them.
"""
