"""Your own images, a folder per class: a federation of five clients, the best head, a prediction.

python own_images.py /data/flowers
"""

import sys
from pathlib import Path

import fedstats_app
from fedstats_app.cli.demo.sites import make_sites


def main(folder: Path, **settings: object) -> str:
    """Run, and return the class that the best head gives an image of the folder."""
    run = fedstats_app.simulate({"dataset": str(folder), "num-clients": 5, **settings})
    classifier = fedstats_app.load(run)
    picture = next(folder.rglob("*.*g"))  # .png, .jpg, .jpeg
    print(classifier, [f"{name} {share:.2f}" for name, share in classifier.top(picture, 3)])
    return classifier.predict(picture)


if __name__ == "__main__":
    own = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else Path("example-images").absolute()
    if len(sys.argv) == 1 and not own.exists():
        make_sites(own)
    main(own if len(sys.argv) > 1 else own / "images" / "site-a")
