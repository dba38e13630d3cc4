"""The model card of a run's heads: what they are, how they were made, what they score, what left the sites.

Markdown behind a block of YAML, as the Hugging Face hub reads it, so that the folder `heads` can be shared as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstats_app.backbones.licences import Licence
from fedstats_app.data.paths import without_folders
from fedstats_app.methods import Needs, display_name, head_parts, is_method, record_of
from fedstats_app.report.head_file import SUFFIX, read_head
from fedstats_app.report.text_columns import bytes_with_unit, percent
from fedstats_app.storage.files import write_atomically
from fedstats_app.storage.json_digest import read_json_file

CARD_NAME = "README.md"
_CLASSES_LISTED = 50


def write_model_card(run_folder: Path) -> Path:
    """Write `heads/README.md` from the heads and the results.json of a run folder.

    Parameters
    ----------
    run_folder : Path
        With at least one head.

    Returns
    -------
    Path
        The card.

    Raises
    ------
    FileNotFoundError
        If there is no head or no results.json.
    ValueError
        If a head or results.json is damaged.
    """
    paths = sorted((run_folder / "heads").glob("*.safetensors"))
    heads = {path.stem: read_head(path)[1] for path in paths if not path.name.endswith(SUFFIX)}
    results = run_folder / "results.json"
    if not heads or not results.is_file():
        raise FileNotFoundError(f"{run_folder}: a model card needs results.json and heads, found {len(heads)} heads")
    card = model_card(heads, read_json_file(results))
    path = run_folder / "heads" / CARD_NAME
    write_atomically(path, card.encode())
    return path


def model_card(heads: Mapping[str, Mapping[str, str]], results: Mapping[str, Any]) -> str:
    """Render the card of heads that come from one run.

    Parameters
    ----------
    heads : mapping
        From a head's name to its metadata (:mod:`fedstats_app.report.head_file`); at least one.
    results : mapping
        The content of results.json.

    Returns
    -------
    str
        The card's text.
    """
    card = _Card(heads, results)
    parts = [
        card.front_matter(),
        card.introduction(),
        card.how_to_use(),
        card.data(),
        card.training(),
        card.evaluation(),
        card.choice(),
        card.calibration(),
        card.privacy(),
        card.licence(),
        card.limits(),
    ]
    return "\n".join(part for part in parts if part)


@dataclass(frozen=True)
class _Card:
    """The parts of a card, and what several of them tell."""

    heads: Mapping[str, Mapping[str, str]]
    results: Mapping[str, Any]

    @property
    def first(self) -> Mapping[str, str]:
        """The metadata of one head, for what is the same in all."""
        return next(iter(self.heads.values()))

    @property
    def kind(self) -> str:
        """What is classified, "image" or "text"."""
        return self.first.get("sample-kind", "image")

    @property
    def classes(self) -> list[str]:
        """Names of all classes."""
        names: list[str] = json.loads(self.first.get("class-names", "[]"))
        return names

    @property
    def scores(self) -> dict[str, Mapping[str, Any]]:
        """What the results say of every head; nothing of one that they do not name."""
        found = {**self.results.get("methods", {}), **self.results.get("training", {})}
        return {name: found.get(name, {}) for name in self.heads}

    @property
    def best(self) -> str:
        """The most accurate head."""
        return max(self.heads, key=lambda name: self.scores[name].get("accuracy") or -1.0)

    @property
    def evaluated_on(self) -> str:
        """On which samples the scores are, in words."""
        number = self.results.get("num_test_examples", 0)
        if not number:
            return "nothing: no test data were there"
        if self.results.get("evaluated_on") == "clients":
            return f"{number} {self.kind}s that clients kept for it"
        return f"{number} test {self.kind}s of the server"

    def front_matter(self) -> str:
        """Return the YAML that the hub reads."""
        data, task = without_folders(self.first.get("dataset", "")), f"{self.kind}-classification"
        lines = [
            "library_name: fedstats-app",
            f"pipeline_tag: {task}",
            "tags:",
            *(f"- {tag}" for tag in ("federated-learning", "flower", task, "training-free")),
        ]
        if data.startswith("hub:"):
            lines += ["datasets:", f"- {json.dumps(data.removeprefix('hub:'))}"]
        entries: list[str] = []
        for name, score in self.scores.items():
            if (accuracy := score.get("accuracy")) is not None:
                # JSON is YAML, and quotes whatever a name may hold.
                entry = {
                    "task": {"type": task},
                    "dataset": {"name": f"{data}: {self.evaluated_on}", "type": data.removeprefix("hub:")},
                    "metrics": [{"type": "accuracy", "value": round(accuracy, 6)}],
                }
                entries += [f"- name: {json.dumps(name)}", f"  results: {json.dumps([entry])}"]
        return "\n".join(["---", *lines, *(["model-index:"] if entries else []), *entries, "---", ""])

    def introduction(self) -> str:
        """Return what the heads are, and their classes."""
        listed = ", ".join(_text(name) for name in self.classes[:_CLASSES_LISTED])
        more = f" and {len(self.classes) - _CLASSES_LISTED} more" if len(self.classes) > _CLASSES_LISTED else ""
        kind, size, clients = self.kind, self.first.get("input-size", "?"), self.first.get("num-clients", "?")
        network = _text(without_folders(self.first.get("backbone", "?")))
        seen = f"at {size} x {size} pixels" if kind == "image" else f"which reads up to {size} tokens of a text"
        features = self.first.get("backbone-features", "")
        taken = f" The features are {_text(features)}." if features else ""
        if arguments := self.first.get("backbone-arguments", ""):
            taken += f" The network was built with `{_text(arguments)}`."
        return f"""# {kind.capitalize()} classifier of {len(self.classes)} classes, from federated statistics

Linear heads on the features of a pre-trained network, `{network}`, {seen}.{taken}
{clients} clients sent statistics of the features of their {kind}s, and no {kind}; the server solved for the heads in
closed form.

Classes: {listed}{more}.
"""

    def how_to_use(self) -> str:
        """Return an example with the most accurate head."""
        given, argument = {
            "image": ('"picture.png"', "picture.png"),
            "text": ('"a text"', '--text "a text"'),
        }[self.kind]
        return f"""## How to use it

```python
import fedstats_app
classifier = fedstats_app.load("/path/to/the/run/folder", {self.best!r})
print(classifier.top({given}, k=3))
```

Or in a shell: `fedstats predict /path/to/the/run/folder {argument}`. The run folder is the one that holds `heads`. The
network's weights are not in it; their fingerprint is, and other weights are refused.
"""

    def data(self) -> str:
        """Return what it was made from."""
        unreadable = self.results.get("num_unreadable", 0)
        left_out = f" {unreadable} more could not be read and were left out." if unreadable else ""
        merged = self.results.get("num_clients_merged", self.first.get("num-clients", "?"))
        asked = self.results.get("num_clients_asked", "?")
        data, samples = _text(without_folders(self.first.get("dataset", "?"))), self.first.get("num-examples", "?")
        removed = f" Then {_text(self.results['removed'])} was removed." if "removed" in self.results else ""
        return f"""## Data

`{data}`: {samples} labelled {self.kind}s for training, of {merged} clients; {asked} were asked.{left_out}{removed}
"""

    def training(self) -> str:
        """Return how each head was made, by whose paper, and with which versions."""
        # Of a training, results.json has the bytes up and down, its start's included.
        sent = {name: score.get("wire_bytes", score.get("bytes")) for name, score in self.scores.items()}
        rows = [
            (
                f"`{name}`",
                _text(_title(name)),
                _text(metadata.get("regulariser", "")) or "none",
                metadata.get("num-clients", "?"),
                _bytes(sent[name]),
            )
            for name, metadata in self.heads.items()
        ]
        table = _table(("head", "method", "regulariser", "clients", "sent by all clients"), rows)
        counted = "Bytes are as sent, as in the run's table; 1 MB is 10^6 bytes."
        if self.results.get("training"):
            counted += " Those of a trained head are up and down, with its start's."
        versions = json.loads(self.first.get("versions", "{}"))
        made = ", ".join(f"{library} {version}" for library, version in versions.items() if version != "not installed")
        seed = f"Seed {self.first.get('seed', '?')}. {made or 'Versions were not recorded'}."
        trained = self.results.get("training", {})
        notes = [
            f"- `{name}`: {_text(note)}.\n" for name in self.heads for note in trained.get(name, {}).get("notes", [])
        ]
        listed = f"\n{''.join(notes)}" if notes else ""
        return f"## Training\n\n{table}\n{counted}\n\n{_papers(self.heads)}{seed}\n{listed}"

    def evaluation(self) -> str:
        """Return how good the predictions are: of every head, and by class of the most accurate one."""
        rows = [
            (
                f"`{name}`",
                percent(score.get("accuracy"), 2),
                _interval(score.get("accuracy_interval")),
                percent(score.get("macro_accuracy"), 2),
                percent(score.get("macro_f1"), 2),
                _area(score.get("macro_auroc")),
            )
            for name, score in self.scores.items()
        ]
        headings = ("head", "accuracy", "95% interval", "balanced accuracy", "macro F1", "macro AUROC")
        return (
            f"## Evaluation\n\nOn {self.evaluated_on}.\n\n{_table(headings, rows)}{self._by_class()}{self._by_client()}"
        )

    def _by_class(self) -> str:
        """Return the numbers of each class with the most accurate head, if it has them and classes are not too many."""
        score = self.scores[self.best]
        columns = [score.get(f"per_class_{name}") or [] for name in ("accuracy", "specificity", "f1", "auroc")]
        if not all(columns) or len(self.classes) > _CLASSES_LISTED:
            return ""
        *shares, areas = columns
        texts = [[percent(share, 2) for share in column] for column in shares]
        rows = list(zip(map(_text, self.classes), *texts, map(_area, areas), strict=True))
        table = _table(("class", "sensitivity", "specificity", "F1", "AUROC"), rows)
        return f"\nThe classes, with `{self.best}`:\n\n{table}"

    def _by_client(self) -> str:
        """Return how the most accurate head's accuracy differs between clients, where they evaluated."""
        spread = self.scores[self.best].get("client_accuracy")
        if not spread:
            return ""
        low, mean, high = (percent(spread[name], 2) for name in ("minimum", "mean", "maximum"))
        return f"\nBy client, accuracies of `{self.best}` go from {low} to {high}; their mean is {mean}.\n"

    def choice(self) -> str:
        """Return which method to take, and what methods score at other ranks; nothing where the run says neither."""
        advice: Sequence[str] = (self.results.get("advice") or {}).get("text", [])
        parts = ["".join(f"- {line}\n" for line in advice)] if advice else []
        for name, curve in self.results.get("curve", {}).items():
            rows = [(one["rank"], _bytes(one["wire_bytes"]), percent(one["accuracy"], 2)) for one in curve]
            parts.append(
                f"{display_name(name)} at other ranks:\n\n{_table(('rank', 'sent by all clients', 'accuracy'), rows)}"
            )
        return "\n".join(["## Which method\n\nBytes are those that all clients sent.\n", *parts]) if parts else ""

    def calibration(self) -> str:
        """Return what the temperatures do."""
        kind = self.kind
        rows = [(f"`{name}`", *_calibrated(score.get("calibration"))) for name, score in self.scores.items()]
        table = _table(("head", "temperature", "negative log-likelihood", "expected calibration error"), rows)
        fitted = [score["calibration"] for score in self.scores.values() if score.get("calibration")]
        near = ""
        if not all(one.get("exact") for one in fitted):
            near = (
                "Where clients evaluated, or the network was tuned, the calibration error after it is interpolated,\n"
                "to about 0.004; `fedstats evaluate` counts it exactly.\n"
            )
        return f"""## Calibration

Scores divided by the temperature, then a softmax, give the probabilities. The temperature was chosen on the {kind}s of
the evaluation themselves: one number, which changes no prediction, but the errors after it are a little too good.
{near}
{table}"""

    def privacy(self) -> str:
        """Return what left each site."""
        kind, lines = self.kind, []
        for name, metadata in self.heads.items():
            method = metadata.get("method", name)
            if is_method(method):
                lines.append(f"- `{name}`: every client sent {_sent(record_of(method).needs)}.")
                continue
            # Runs of versions that did not write it down lack it.
            sent = self.results.get("training", {}).get(name, {}).get("sent") or "what `disclosure.jsonl` lists"
            lines.append(f"- `{name}`: besides the statistics of its start, clients sent {sent}.")
        if self.results.get("evaluated_on") == "clients":
            lines.append(
                "- Evaluation: every client sent how often it saw which class taken for which, histograms of the "
                f"scores' margins by class, and sums over its {kind}s of how sure the heads were."
            )
        listed = "\n".join(lines)
        return f"""## Privacy

{kind.capitalize()}s stayed where they were. What left each site:

{listed}

These are exact statistics, without noise: no differential privacy is claimed. The mean of a single {kind} is that
{kind}'s features, so they say most about classes with few {kind}s at a site. How many bytes each client sent stands in
`clients.jsonl` of the run folder.
"""

    def licence(self) -> str:
        """Return the licence of the backbone's weights, and what to heed; nothing where the head does not say."""
        if "backbone-licence" not in self.first:
            return ""
        said = json.loads(self.first["backbone-licence"])
        licence = Licence(said["name"], said["source"], tuple(said["terms"]))
        source = f" (according to {_text(licence.source)})" if licence.source else ""
        warnings = "".join(f"- **{_text(warning)}**\n" for warning in licence.warnings)
        weights = f"The weights of `{_text(without_folders(self.first.get('backbone', '?')))}`"
        return f"""## Licence of the backbone

{weights}, without which a head is of no use: {_text(licence.name)}{source}.
{warnings}"""

    def limits(self) -> str:
        """Return what it cannot do."""
        kind = self.kind
        return f"""## Limits

- Every {kind} gets one of the {len(self.classes)} classes, also one of none of them; a low probability is no alarm.
- {kind.capitalize()}s unlike those it was made from and evaluated on can score worse, with probabilities that are off.
- The licences of the network's weights and of the data apply to what is made from them.
"""


def _calibrated(fitted: Mapping[str, float] | None) -> tuple[str, ...]:
    if fitted is None:
        return "not calibrated", "-", "-"
    changes = (f"{fitted[f'{what}_before']:.3f} -> {fitted[f'{what}_after']:.3f}" for what in ("nll", "ece"))
    return f"{fitted['temperature']:.4g}", *changes


def _papers(heads: Iterable[str]) -> str:
    """Return the paper of every method that is one of ours, as a sentence."""
    methods = (head_parts(name)[0] for name in heads)
    records = {record.name: record for record in (record_of(name) for name in methods if is_method(name))}
    papers = "; ".join(f"{record.display_name}, {record.paper}" for record in records.values())
    return f"Papers: {papers}. " if papers else ""


def _sent(needs: Needs) -> str:
    """Tell what a client sends for a head, and can give away by it."""
    sums = "the mean of their features (or several such means)" if needs.several_means else "the sum of their features"
    more = ", and one Gram matrix" if needs.gram else ""
    if needs.scatter:
        more = ", and the largest directions of the scatter within its classes"
    return f"for each of its classes the number of samples and {sums}{more}"


def _title(name: str) -> str:
    """Spell out a head's name: the method's, and what was trained behind it."""
    method, stage = head_parts(name)
    return display_name(method) + (f", then {stage}" if stage else "")


def _bytes(number: int | None) -> str:
    return "-" if number is None else bytes_with_unit(number)


def _interval(bounds: Sequence[float] | None) -> str:
    return "-" if bounds is None else " to ".join(percent(bound, 2) for bound in bounds)


def _area(area: float | None) -> str:
    return "-" if area is None else f"{area:.4f}"


def _text(value: str) -> str:
    """Keep names that people chose from ending a table's cell, a line or a code span."""
    return "".join(" " if character in "|`\n\r" else character for character in value)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
