"""What a saved head says of itself."""

import json
from collections.abc import Sequence

from fedstats_app.backbones.backbone import Backbone


def head_metadata(backbone: Backbone, class_names: Sequence[str], /, **changes: str) -> dict[str, str]:
    """Return the entries that a head of FedNCM is saved with; ``_`` stands for ``-`` in ``changes``."""
    return {
        "method": "fedncm",
        "backbone": backbone.name,
        "backbone-weights": "",
        "backbone-fingerprint": backbone.fingerprint,
        "input-size": str(backbone.input_size),
        "feature-map": backbone.feature_map,
        "feature-power": "1",
        "class-names": json.dumps(list(class_names)),
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }
