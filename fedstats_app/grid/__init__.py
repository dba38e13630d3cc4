"""Clients as nodes: who is there, asking them in windows, reading and folding replies in their order."""
