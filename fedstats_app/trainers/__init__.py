"""What can train from a solved head: one record per file and how the server runs it; the only table of them.

It may import strategies, results and what stands below them; importing the room imports neither torch nor Flower.
"""

# One line per trainer, in the order of the documents.
# isort: off
from fedstats_app.trainers.trainer import Trainer
from fedstats_app.trainers.probe import PROBE as PROBE
from fedstats_app.trainers.full import FULL as FULL
from fedstats_app.trainers.features import FEATURES as FEATURES
from fedstats_app.trainers.fedmezo import FEDMEZO as FEDMEZO
# isort: on

__all__ = ["TRAINERS", "Trainer"]

TRAINERS: dict[str, Trainer] = {one.name: one for one in tuple(globals().values()) if isinstance(one, Trainer)}
