"""Output of a run: the run folder, tables, page, model card, figures, export.

It may import methods, backbones, data, grid's plain values and what stands below them, but neither Flower nor the
readers of configuration. Importing the room itself imports nothing.
"""
