"""Papers' tables, baselines, benchmarks and trials of attacks: in the repository, in no wheel and in no bundle.

May import all of `fedstats_app`, which knows nothing of it.
"""
