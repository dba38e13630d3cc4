"""A run's report: one HTML page made from the run folder alone. May import outcomes, methods, results and below.

Templates are Python strings, because an app bundle carries no `.html`.
"""
