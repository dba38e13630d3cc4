"""Tables of the papers by one command: presets, the runs that they need, and what came out beside what was published.

May import everything but the command line. How a run is made is handed in.
"""
