"""The model card of a run's heads: what they are, how they were made, what they score, what left the sites.

Markdown behind a block of YAML, as the Hugging Face hub reads it, so that the folder `heads` can be shared as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstats_app.methods import METHODS, Needs, display_name
from fedstats_app.results.head_file import read_head
from fedstats_app.results.tuned_backbone import SUFFIX
from fedstats_app.storage.files import write_atomically

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
        If a head is damaged.
    """
    paths = sorted((run_folder / "heads").glob("*.safetensors"))
    heads = {path.stem: read_head(path)[1] for path in paths if not path.name.endswith(SUFFIX)}
    results = run_folder / "results.json"
    if not heads or not results.is_file():
        raise FileNotFoundError(f"{run_folder}: a model card needs results.json and heads, found {len(heads)} heads")
    card = model_card(heads, json.loads(results.read_text(encoding="utf-8")))
    path = run_folder / "heads" / CARD_NAME
    write_atomically(path, card.encode())
    return path


def model_card(heads: Mapping[str, Mapping[str, str]], results: Mapping[str, Any]) -> str:
    """Render the card of heads that come from one run.

    Parameters
    ----------
    heads : mapping
        From a head's name to its metadata (`fedstats_app.results.head_file.METADATA_KEYS`); at least one.
    results : mapping
        The content of results.json.

    Returns
    -------
    str
        The card's text.
    """
    first = next(iter(heads.values()))
    scores: dict[str, Mapping[str, Any]] = {**results.get("methods", {}), **results.get("training", {})}
    best = _most_accurate(heads, scores)
    parts = [
        _front_matter(heads, first, scores, results),
        _introduction(first),
        _how_to_use(first, best),
        _data(first, results),
        _training(heads, scores),
        _evaluation(heads, scores, results),
        _calibration(heads, scores),
        _privacy(heads, results),
        _limits(first),
    ]
    return "\n".join(parts)


def _kind(first: Mapping[str, str]) -> str:
    """Return what is classified, "image" or "text"."""
    return first.get("sample-kind", "image")


def _most_accurate(heads: Mapping[str, object], scores: Mapping[str, Mapping[str, Any]]) -> str:
    return max(heads, key=lambda name: scores.get(name, {}).get("accuracy") or -1.0)


def _front_matter(
    heads: Mapping[str, object],
    first: Mapping[str, str],
    scores: Mapping[str, Mapping[str, Any]],
    results: Mapping[str, Any],
) -> str:
    data = first.get("dataset", "")
    lines = [
        "library_name: fedstats-app",
        f"pipeline_tag: {_kind(first)}-classification",
        "tags:",
        *(f"- {tag}" for tag in ("federated-learning", "flower", f"{_kind(first)}-classification", "training-free")),
    ]
    if data.startswith("hub:"):
        lines += ["datasets:", f"- {json.dumps(data.removeprefix('hub:'))}"]
    evaluated = [(name, scores.get(name, {}).get("accuracy")) for name in heads]
    if any(accuracy is not None for _, accuracy in evaluated):
        where = _evaluated_on(first, results)
        lines += ["model-index:"]
        for name, accuracy in evaluated:
            if accuracy is not None:
                # JSON is YAML, and quotes whatever a name may hold.
                entry = {
                    "task": {"type": f"{_kind(first)}-classification"},
                    "dataset": {"name": f"{data}: {where}", "type": data.removeprefix("hub:")},
                    "metrics": [{"type": "accuracy", "value": round(accuracy, 6)}],
                }
                lines += [f"- name: {json.dumps(name)}", f"  results: {json.dumps([entry])}"]
    return "\n".join(["---", *lines, "---", ""])


def _introduction(first: Mapping[str, str]) -> str:
    classes: list[str] = json.loads(first.get("class-names", "[]"))
    listed = ", ".join(_text(name) for name in classes[:_CLASSES_LISTED])
    more = f" and {len(classes) - _CLASSES_LISTED} more" if len(classes) > _CLASSES_LISTED else ""
    kind, size, clients = _kind(first), first.get("input-size", "?"), first.get("num-clients", "?")
    seen = f"at {size} x {size} pixels" if kind == "image" else f"which reads up to {size} tokens of a text"
    return f"""# {kind.capitalize()} classifier of {len(classes)} classes, from federated statistics

Linear heads on the features of a pre-trained network, `{_text(first.get("backbone", "?"))}`, {seen}.
{clients} clients sent statistics of the features of their {kind}s, and no {kind}; the server solved for the heads in
closed form.

Classes: {listed}{more}.
"""


def _how_to_use(first: Mapping[str, str], best: str) -> str:
    given, argument = {
        "image": ('"picture.png"', "picture.png"),
        "text": ('"a text"', '--text "a text"'),
    }[_kind(first)]
    return f"""## How to use it

```python
import fedstats_app
classifier = fedstats_app.load("/path/to/the/run/folder", {best!r})
print(classifier.top({given}, k=3))
```

Or in a shell: `fedstats predict /path/to/the/run/folder {argument}`. The run folder is the one that holds `heads`. The
network's weights are not in it; their fingerprint is, and other weights are refused.
"""


def _data(first: Mapping[str, str], results: Mapping[str, Any]) -> str:
    unreadable = results.get("num_unreadable", 0)
    left_out = f" {unreadable} more could not be read and were left out." if unreadable else ""
    merged, asked = (
        results.get("num_clients_merged", first.get("num-clients", "?")),
        results.get("num_clients_asked", "?"),
    )
    data, samples = _text(first.get("dataset", "?")), first.get("num-examples", "?")
    return f"""## Data

`{data}`: {samples} labelled {_kind(first)}s for training, of {merged} clients; {asked} were asked.{left_out}
"""


def _training(heads: Mapping[str, Mapping[str, str]], scores: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for name, metadata in heads.items():
        score = scores.get(name, {})
        up = score.get("wire_bytes")
        rows.append(
            (
                f"`{name}`",
                _text(_title(name)),
                _text(metadata.get("regulariser", "")) or "none",
                metadata.get("num-clients", "?"),
                "-" if up is None else f"{up / 1e6:,.2f} MB",
            )
        )
    table = _table(("head", "method", "regulariser", "clients", "sent by all clients"), rows)
    seed, versions = (
        heads[next(iter(heads))].get("seed", "?"),
        json.loads(next(iter(heads.values())).get("versions", "{}")),
    )
    made = ", ".join(f"{library} {version}" for library, version in versions.items() if version != "not installed")
    return f"## Training\n\n{table}\nSeed {seed}. {made or 'Versions were not recorded'}.\n"


def _evaluation(
    heads: Mapping[str, Mapping[str, str]], scores: Mapping[str, Mapping[str, Any]], results: Mapping[str, Any]
) -> str:
    first = next(iter(heads.values()))
    rows = [
        (
            f"`{name}`",
            _percent(scores.get(name, {}).get("accuracy")),
            _percent(scores.get(name, {}).get("macro_accuracy")),
        )
        for name in heads
    ]
    table = _table(("head", "accuracy", "mean of the classes' accuracies"), rows)
    return f"## Evaluation\n\nOn {_evaluated_on(first, results)}.\n\n{table}"


def _evaluated_on(first: Mapping[str, str], results: Mapping[str, Any]) -> str:
    number = results.get("num_test_examples", 0)
    if not number:
        return "nothing: no test data were there"
    kind = _kind(first)
    if results.get("evaluated_on") == "clients":
        return f"{number} {kind}s that clients kept for it"
    return f"{number} test {kind}s of the server"


def _calibration(heads: Mapping[str, Mapping[str, str]], scores: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for name in heads:
        fitted = scores.get(name, {}).get("calibration")
        if fitted is None:
            rows.append((f"`{name}`", "not calibrated", "-", "-"))
            continue
        rows.append(
            (
                f"`{name}`",
                f"{fitted['temperature']:.4g}",
                f"{fitted['nll_before']:.3f} -> {fitted['nll_after']:.3f}",
                f"{fitted['ece_before']:.3f} -> {fitted['ece_after']:.3f}",
            )
        )
    table = _table(("head", "temperature", "negative log-likelihood", "expected calibration error"), rows)
    kind = _kind(next(iter(heads.values())))
    return f"""## Calibration

Scores divided by the temperature, then a softmax, give the probabilities. The temperature was chosen on the {kind}s of
the evaluation themselves: one number, which changes no prediction, but the errors after it are a little too good.

{table}"""


def _privacy(heads: Mapping[str, Mapping[str, str]], results: Mapping[str, Any]) -> str:
    kind = _kind(next(iter(heads.values())))
    lines = []
    for name, metadata in heads.items():
        method = metadata.get("method", name)
        if method in METHODS:
            lines.append(f"- `{name}`: every client sent {_sent(METHODS[method].needs)}.")
            continue
        # Runs of versions that did not write it down lack it.
        sent = results.get("training", {}).get(name, {}).get("sent") or "what `disclosure.jsonl` lists"
        lines.append(f"- `{name}`: besides the statistics of its start, clients sent {sent}.")
    if results.get("evaluated_on") == "clients":
        lines.append(
            "- Evaluation: every client sent how often it saw which class taken for which, and sums over its "
            f"{kind}s of how sure the heads were."
        )
    sent = "\n".join(lines)
    return f"""## Privacy

{kind.capitalize()}s stayed where they were. What left each site:

{sent}

These are exact statistics, without noise: no differential privacy is claimed. The mean of a single {kind} is that
{kind}'s features, so they say most about classes with few {kind}s at a site. How many bytes each client sent stands in
`clients.jsonl` of the run folder.
"""


def _sent(needs: Needs) -> str:
    """Tell what a client sends for a head, and can give away by it."""
    sums = "the mean of their features (or several such means)" if needs.several_means else "the sum of their features"
    return f"for each of its classes the number of samples and {sums}{', and one Gram matrix' if needs.gram else ''}"


def _limits(first: Mapping[str, str]) -> str:
    kind, present = _kind(first), json.loads(first.get("class-names", "[]"))
    return f"""## Limits

- Every {kind} gets one of the {len(present)} classes, also one of none of them; a low probability is no alarm.
- {kind.capitalize()}s unlike those it was made from and evaluated on can score worse, with probabilities that are off.
- The licences of the network's weights and of the data apply to what is made from them.
"""


def _title(name: str) -> str:
    """Spell out a head's name: the method's, and what was trained behind it."""
    method, _, stage = name.partition("-")
    return display_name(method) + (f", then {stage}" if stage else "")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def _text(value: str) -> str:
    """Keep names that people chose from ending a table's cell, a line or a code span."""
    return "".join(" " if character in "|`\n\r" else character for character in value)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
