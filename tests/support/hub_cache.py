"""The Hugging Face hub's cache on disk, as huggingface_hub lays it out, in a folder of a test."""

from dataclasses import dataclass
from pathlib import Path

COMMIT = "0123456789012345678901234567890123456789"


@dataclass(frozen=True)
class HubCache:
    """A cache in which tests put models.

    Attributes
    ----------
    root : Path
        What HF_HUB_CACHE names.
    """

    root: Path

    def folder(self, repository: str, revision: str = "main") -> Path:
        """Return the folder of a model's snapshot, made as if a revision had been downloaded into it."""
        model = self.root / f"models--{repository.replace('/', '--')}"
        (model / "refs").mkdir(parents=True, exist_ok=True)
        (model / "refs" / revision).write_text(COMMIT)
        snapshot = model / "snapshots" / COMMIT
        snapshot.mkdir(parents=True, exist_ok=True)
        return snapshot
