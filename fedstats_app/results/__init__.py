"""What a run leaves behind: a folder with results, heads and plots, and tables for the terminal.

It may import methods, outcomes and what stands below them, but neither Flower nor the configuration; the plots alone
need matplotlib. Importing the room itself does not import torch.
"""
