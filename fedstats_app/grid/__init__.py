"""Clients as nodes: who is there, asking them in windows, reading and folding replies in their order.

It may import wire, privacy, outcomes and what stands below them.
"""
