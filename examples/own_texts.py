"""Your own texts, a CSV file with columns text and label: a run, and predictions.

python own_texts.py reviews.csv    (pip install "fedstats-app[text]")
"""

import csv
import sys
from pathlib import Path

import fedstats_app

WORDS = {
    "refund": ("money back", "charged twice", "wrong invoice", "refund my order"),
    "delivery": ("parcel is late", "wrong address", "box arrived broken", "where is my order"),
    "account": ("forgot my password", "cannot log in", "delete my account", "change my email"),
}


def make_tickets(path: Path) -> Path:
    """Write 240 short texts of three classes."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for number in range(20):
            for label, texts in WORDS.items():
                rows.writerows([f"{text}, ticket {number}, please help", label] for text in texts)
    return path


def main(path: Path, **settings: object) -> list[str]:
    """Run, and return the classes of two new texts."""
    run = fedstats_app.simulate(
        {"dataset": f"csv:{path}", "backbone": "all-MiniLM-L6-v2", "num-clients": 4, "partitioner": "iid", **settings}
    )
    found = fedstats_app.load(run).predict(["I cannot log in to my account", "my parcel is late again"])
    print(found)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else make_tickets(Path("tickets.csv")))
