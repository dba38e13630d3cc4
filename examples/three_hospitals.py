"""Three hospitals in one process, by hand: features, statistics that add, a head; no Flower."""

import torch

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.data import load_dataset
from fedstats_app.heads import solve_ridge
from fedstats_app.statistics import FeatureStatistics


def main(name: str = "efficientnet_lite0", images: int = 600) -> dict[str, float]:
    """Return the accuracy of each hospital's own head and of the head of the sum."""
    train, test = load_dataset("builtin", "train"), load_dataset("builtin", "test")
    backbone = load_backbone(name, input_size=64, batch_size=16)

    def features(dataset, indices):
        return torch.cat(list(backbone.extract(dataset.sample(index) for index in indices)))

    # Each has its own part of the ten classes, which no other has seen.
    sites = [[index for index in range(images) if train.labels[index] * 3 // 10 == site] for site in range(3)]
    sent = [
        FeatureStatistics.from_features(features(train, own), torch.from_numpy(train.labels[own]), 10) for own in sites
    ]
    heads = {f"hospital {site}": solve_ridge(one) for site, one in enumerate(sent)}
    heads["together"] = solve_ridge(sum(sent))

    asked = list(range(images // 3))
    seen, labels = features(test, asked), torch.from_numpy(test.labels[asked])
    accuracy = {who: float((head.predict(seen) == labels).double().mean()) for who, head in heads.items()}
    for who, share in accuracy.items():
        print(f"{who}: {100 * share:.1f} %")
    return accuracy


if __name__ == "__main__":
    main()
