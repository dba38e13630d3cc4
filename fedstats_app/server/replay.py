"""The tuned model of a FedMeZO training from what its run folder holds."""

from __future__ import annotations

from pathlib import Path

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.fedmezo.log import TrainingFiles
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.fedmezo.setup import MezoSetup, build_model, make_replica
from fedstats_app.wire.reading import from_values


def replay(folder: Path, backbone: Backbone) -> Replica:
    """Return the tuned model that a run's log makes of its start: the same bits as every node's.

    Parameters
    ----------
    folder : Path
        ``mezo/NAME`` of a run folder.
    backbone : Backbone
        The run's.

    Raises
    ------
    ValueError
        If the folder holds no start, or one that is damaged or of another backbone.
    """
    files = TrainingFiles(folder)
    kept = files.load_start()
    if kept is None:
        raise ValueError(f"{folder} must hold the start of a training by FedMeZO, sound, and does not")
    setup = from_values(MezoSetup, kept[0])
    if setup.request.backbone_fingerprint not in ("", backbone.fingerprint):
        raise ValueError(
            f"{folder}: the backbone must have fingerprint {setup.request.backbone_fingerprint[:16]}, "
            f"got {backbone.name} with {backbone.fingerprint[:16]}"
        )
    replica = make_replica(setup, build_model(setup, kept[1], backbone.module, backbone.feature_dim, backbone.device))
    replica.apply(files.load_log(setup.num_directions))
    return replica
