"""Secure sums: keys, masks that cancel in the sum, shares of keys, and what a party refuses. Pure functions of bytes.

Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning"; Bell et al. 2020, "Secure
single-server aggregation with (poly)logarithmic overhead". It may import numpy and cryptography, neither torch nor
Flower: most messages are answered by a new process, without them.
"""
