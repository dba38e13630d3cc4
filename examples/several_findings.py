"""Several findings a picture, as of chest X-rays, some unknown, at three hospitals; the pictures are made."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from fedstats_app import load, simulate

FINDINGS = ("nodule", "effusion", "large heart", "air", "device")


def picture(rng: np.random.Generator, found: list[bool]) -> Image.Image:
    """Draw a grey chest with some findings."""
    image = Image.fromarray(rng.normal(90, 12, (64, 64)).clip(0, 255).astype(np.uint8))
    draw, (x, y) = ImageDraw.Draw(image), rng.integers(12, 44, 2).tolist()
    size = 11 if found[2] else 7
    draw.ellipse((34 - size, 38 - size, 34 + size, 38 + size), fill=150)
    if found[0]:
        draw.ellipse((x, y, x + 5, y + 5), fill=220)
    if found[1]:
        draw.rectangle((0, 50 + y // 10, 30, 64), fill=170)
    if found[3]:
        draw.rectangle((44, 4, 60, 24 + x // 4), fill=25)
    if found[4]:
        draw.line((x, 0, y, 40), fill=245, width=2)
    return image


def make_tables(folder: Path, number: int = 600) -> Path:
    """Write pictures, and tables with a column a finding: 1, 0, -1 if unsure, empty if not read."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", number), ("test", number // 3)):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", "hospital", *FINDINGS])
            for place in range(count):
                found = [bool(share > rng.random()) for share in (0.3, 0.3, 0.2, 0.15, 0.25)]
                picture(rng, found).save(folder / f"{split}-{place}.png")
                cells = [rng.choice(["", -1]) if rng.random() < 0.1 else int(has) for has in found]
                rows.writerow([f"{split}-{place}.png", "abc"[place % 3], *cells])
    return folder


def main(folder: Path, **settings: object) -> list[str]:
    """Run, and return what the head finds in three new pictures."""
    columns = {"label-columns": ",".join(FINDINGS), "partitioner": "natural-id", "partition-column": "hospital"}
    run = simulate({"dataset": f"csv:{folder.absolute()}", **columns, **settings})
    rng = np.random.default_rng(1)
    found = load(run).predict([picture(rng, [place == 0, place == 1, place > 0, False, False]) for place in range(3)])
    print(found)
    return found


if __name__ == "__main__":
    main(make_tables(Path("findings")))
