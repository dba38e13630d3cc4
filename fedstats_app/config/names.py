"""What the configuration can name."""

from __future__ import annotations

METHOD_NAMES = ("fedncm", "fed3r", "fedcof", "fedcgs")
BACKBONES = (
    "efficientnet_lite0",
    "squeezenet1_1",
    "mobilenet_v2",
    "resnet18",
    "resnet50",
    "efficientnet_b0",
    "vit_b_16",
    "vit_b_32",
    "tiny",
    "all-MiniLM-L6-v2",
    "tiny-text",
)
# Those of them that take texts, besides what begins with one of the prefixes.
TEXT_BACKBONES = ("all-MiniLM-L6-v2", "tiny-text")
TEXT_PREFIXES = ("sentence:", "transformers:")
# Heads to start from that no statistics are needed for.
MADE_HEADS = ("random", "zero", "label-words")
OPTIMIZER_NAMES = ("fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadam-torch")
# Server learning rates where "auto" stands; 1, plain averaging, for the others.
AUTO_SERVER_RATE = {"fedadam": 0.01, "fedyogi": 0.01, "fedadam-torch": 0.001}
# Ways to a model of one's own for every client, and what they are compared with.
PERSONAL_APPROACHES = ("global", "local-only", "one-shot", "one-shot-sum", "fedavg-ft", "fedproto", "closed-form")
PARTITIONERS = ("iid", "dirichlet", "pathological", "natural-id", "domain", "fedcof", "fedcgs", "fedpac")
# What FedMeZO can tune, besides names:PATTERN,...
TUNED_PARTS = ("head", "full", "bias", "norm", "lora")
