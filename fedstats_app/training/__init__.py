"""Training after a closed-form head by gradients: torch only, apart from Flower and the network.

Everything random is drawn from a key of integers (seed, client, round): the same key, the same number of torch threads,
the same bits. Importing the room itself does not import torch.
"""

from fedstats_app.training.training_options import LocalOptions

__all__ = ["LocalOptions"]
