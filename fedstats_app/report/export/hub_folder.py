"""One head of a run as a folder that can be pushed to the Hugging Face hub as it is, and loaded again."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

from fedstats_app.base.files import read_json_file, to_json, write_atomically
from fedstats_app.data.paths import without_folders
from fedstats_app.methods import head_parts, is_method, method_type
from fedstats_app.report.head_file import FILE_KEY, head_to_bytes, read_head
from fedstats_app.report.method_result import measure_of
from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.tables import head_title
from fedstats_app.report.text_columns import area, percent
from fedstats_app.report.wording import evaluated_on, privacy_in_words

CARD_NAME = "README.md"
PREPROCESSING = "preprocessor_config.json"
_CLASSES_LISTED = 50
_CARD = """
# {title} classifier of {num_classes} {targets}, from federated statistics

A head of {head}{paper} ({made_by}) on the features of a pre-trained network, `{network}`. {clients} sites have
{examples} {kind}s of `{data}` for training. They sent statistics of the {kind}s' features, and no {kind}; the server
solved for the head in closed form, and every later training starts from one.

{named}: {classes}.

```python
import fedstats_app
print(fedstats_app.load("/path/of/this/folder").{method}({sample}))
```

The network's weights are not in the folder unless training changed them; their fingerprint is, and others are refused.

- {measure}: {value}, on {evaluated_on}
- Differential privacy: {privacy}. Without it, statistics are exact: the mean of a single {kind} is its features.
- Licence of the network's weights, which the head needs: {licence}. That of the data applies too.
- Made with {versions}, seed {seed}

Every {kind} gets {given}, and {kind}s unlike those for training can score worse.
"""
_GIVEN = {
    "classes": "one of the classes, also one of none of them",
    "labels": "any number of the labels, also none",
    "numbers": "every number",
}
_OF_ONNX = """
`{name}.onnx` is network and head in one file, which predicts without torch; its header says what to feed it.
"""


def write_hub_folder(run_folder: Path, name: str, folder: Path, *, licence: str, onnx: bool) -> list[Path]:
    """Write a head, its card and its preprocessing, and its backbone where training changed that, into a new folder.

    The files contain no paths of this machine and nothing about single sites.

    Parameters
    ----------
    run_folder : Path
        With the head and results.json.
    name : str
        The head's.
    folder : Path
        Is made; it must be empty or not be there.
    licence : str
        Of the head, as the hub names it; "" says that the backbone's and the data's are to be looked at.
    onnx : bool
        True if the card should mention an ONNX file beside it.

    Raises
    ------
    FileNotFoundError, ValueError
        If the folder has something in it, or head or results are missing or damaged.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} must be an empty folder, or not be there")
    source = run_folder / "heads" / f"{name}.safetensors"
    head, metadata = read_head(source)
    shown = {key: without_folders(value) for key, value in metadata.items()}
    preprocessing = {
        "backbone": shown["backbone"],
        "backbone_fingerprint": shown["backbone-fingerprint"],
        "class_names": json.loads(shown["class-names"]),
        "transform": json.loads(shown.get("transform", "{}")),
    }
    results = read_json_file(run_folder / "results.json")
    card = model_card(RunRecord(name, {}, results=results, heads={name: shown}), name, licence)
    files = {
        folder / "heads" / source.name: head_to_bytes(head, shown),
        folder / PREPROCESSING: to_json(preprocessing).encode(),
        folder / CARD_NAME: (card + _OF_ONNX.format(name=name) * onnx).encode(),
    }
    if tuned := metadata.get(FILE_KEY):
        files[folder / "heads" / Path(tuned).name] = (source.with_name(Path(tuned).name)).read_bytes()
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return list(files)


def model_card(run: RunRecord, name: str, licence: str) -> str:
    """Write a head's card: Markdown behind a block of YAML, as the hub reads it."""
    head = defaultdict(lambda: "unknown", {"versions": "{}", **run.heads[name]})
    targets = run.heads[name].get("targets", "classes")
    kind, on, (measure, value) = run.kind, evaluated_on(run), measure_of(run.all_heads.get(name, {}))
    classes, data = json.loads(head["class-names"]), head["dataset"]
    versions = json.loads(head["versions"]).items()
    task, hub = f"{kind}-classification", data.removeprefix("hub:")
    matter: dict[str, object] = {
        "library_name": "fedstats-app",
        "pipeline_tag": task,
        "tags": ["federated-learning", "flower", task, "training-free"],
        # What kind of licence "other" is, the hub wants to have a name for.
        **({"license": licence} if licence else {"license": "other", "license_name": "of-backbone-and-data"}),
        **({"datasets": [hub]} if data.startswith("hub:") else {}),
    }
    if value is not None:
        metrics = [{"type": measure, "value": round(value, 6)}]
        result = {"task": {"type": task}, "dataset": {"name": f"{data}: {on}", "type": hub}, "metrics": metrics}
        matter["model-index"] = [{"name": name, "results": [result]}]
    # JSON is YAML, and quotes any name.
    lines = ["---", *(f"{key}: {to_json(value, indent=None)}" for key, value in matter.items()), "---", ""]
    more = f" and {len(classes) - _CLASSES_LISTED} more" if len(classes) > _CLASSES_LISTED else ""
    return "\n".join(lines) + _CARD.format(
        title=kind.capitalize(),
        kind=kind,
        num_classes=len(classes),
        head=head_title(name),
        paper=f", {method_type(method).paper}" if is_method(method := head_parts(name)[0]) else "",
        made_by=_escaped(head["regulariser"]),
        network=_plain(head["backbone"]),
        data=_plain(data),
        clients=head["num-clients"],
        examples=head["num-examples"],
        classes=", ".join(map(_escaped, classes[:_CLASSES_LISTED])) + more,
        sample='"picture.png"' if kind == "image" else '"a text"',
        measure=measure[0].upper() + measure[1:],
        value=percent(value) if measure == "accuracy" else area(value),
        targets=targets,
        named=targets.capitalize(),
        method="scores" if targets == "numbers" else "predict",
        given=_GIVEN[targets],
        evaluated_on=on,
        privacy=privacy_in_words(run.results.get("differential_privacy")),
        licence=_escaped(head["backbone-licence"]),
        versions=", ".join(f"{library} {version}" for library, version in versions if version != "not installed"),
        seed=head["seed"],
    )


def _plain(text: str) -> str:
    """Keep names that people chose from ending a line or a code span."""
    return "".join(" " if character in "|`\n\r" else character for character in text)


def _escaped(name: str) -> str:
    """Keep a name from being Markdown or HTML: links, images, tags, emphasis."""
    return re.sub(r"([\\`*_\[\]<>#!~&$])", r"\\\1", _plain(name))
