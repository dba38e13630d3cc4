"""Differential privacy of feature statistics: the account, the noise, the heads that come of it, and its audit."""
