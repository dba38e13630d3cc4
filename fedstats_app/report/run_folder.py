"""The folder that a run leaves behind: status, configuration, results, clients, heads, plots.

A run makes it before it imports torch.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from fedstats_app.base.files import append_lines, read_json_file, tensors_to_bytes, to_json, write_atomically
from fedstats_app.base.runs import DEFAULT_OUTPUT_DIR, run_named
from fedstats_app.data.paths import without_folders

if TYPE_CHECKING:
    from fedstats_app.backbones.backbone import Backbone
    from fedstats_app.heads import LinearHead
    from fedstats_app.report.head_file import Normalisation
    from fedstats_app.report.training_record import RoundRecord

# A block of the disk, which the file has from the beginning: a longer reason needs no other one of a full disk.
STATUS_BYTES = 4096


def _status_bytes(status: Mapping[str, object], reason: str) -> bytes:
    """Write JSON of at most `STATUS_BYTES` bytes: a long reason is cut."""
    text = to_json({**status, "reason": reason})
    while len(text.encode("utf-8", "replace")) > STATUS_BYTES - 1:
        reason = reason[: len(reason) * 3 // 4]
        text = to_json({**status, "reason": f"{reason} ... (cut)"})
    return f"{text}\n".encode("utf-8", "replace")


DISCLOSURE_FILE = "disclosure.jsonl"
Status = Literal["running", "completed", "failed", "stopped"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@=()%-]*")

_README = """# A run of fedstats-app

| file | what it is |
|---|---|
| status.json | whether the run is running, completed, failed or stopped, why, and when it started and ended (UTC) |
| traceback.txt | of a run that failed: where in the code |
| config.json | everything that was used: settings, versions, seeds |
| results.json | methods: accuracy, sites, bytes sent, time to solve; training: accuracy, rounds, bytes, compute |
| clients.jsonl | one line per site: what it sent, how long it took, and why it failed if it did |
| disclosure.jsonl | what left each site: one line per site and kind of message, fields with shapes and bytes |
| statistics.safetensors | SENSITIVE, readable by you only: the statistics of all sites, for a later run (`extend`) |
| clients/ | SENSITIVE, if it was asked for: what each site sent, so that one can be removed (`fedstats remove`) |
| rounds.jsonl | one line per round of training: accuracy, loss, bytes, forward passes, sites |
| heads/ | classifier heads, and backbones that training changed (safetensors; a head's header says how it was made) |
| checkpoints/ | state of unfinished trainings, from which an interrupted run continues |
| report.html | all of this in one page for a browser, without network; `fedstats report` makes it again |
| plots/ | pictures (PNG): accuracy against megabytes, confusion matrix, training |

A file that is missing here was not reached: see status.json. In the JSON files, `null` stands for a value that there is
not, and the strings `"inf"` and `"-inf"` for infinite numbers.

To classify a picture with the recommended head (or name one: `load(folder, "fed3r")`):

```python
import fedstats_app
classifier = fedstats_app.load({folder!r})
print(classifier.predict("picture.png"))
```
"""


def can_resume(run_config: Mapping[str, Any]) -> bool:
    """Return whether a run can be resumed: of masks and noise nothing is kept, so a run of sums only begins anew."""
    return run_config.get("secure-sums", "off") == "off" and not run_config.get("dp-epsilon", 0.0)


class RunFolder:
    """One run's folder. Every file in it is replaced in one step, so a reader never sees half of one.

    Make one with `RunFolder.create`.

    Attributes
    ----------
    path : Path
        Absolute path of the folder.
    run_id : str
        Flower's id of the run.
    started : datetime
        When the folder was made, in UTC.
    """

    def __init__(self, path: Path, run_id: str, started: datetime) -> None:
        self.path = path
        self.run_id = run_id
        self.started = started
        self._rounds = path / "rounds.jsonl"
        self._last: dict[tuple[str, str], int] = {}  # by training, its last round that this process wrote

    @classmethod
    def create(cls, output_dir: str, run_id: int | str, *, name: str = "") -> Self:
        """Make a new sub-folder `<yyyymmdd>-<hhmmss>` of UTC, or of a given name, with a README.md in it.

        `-2`, `-3`, ... is added if it exists already.

        Parameters
        ----------
        output_dir : str
            Absolute path or one that starts with `~`; "" is `~/fedstats-runs`. Made if it does not exist.
        run_id : int or str
            Flower's; it is in status.json.
        name : str
            Of the folder, in place of the time.

        Raises
        ------
        ValueError
            If `output_dir` is relative.
        NotADirectoryError
            If `output_dir` is a file.
        OSError
            If the folder cannot be made.
        """
        root = _output_root(output_dir)
        started = datetime.now(UTC)
        try:
            root.mkdir(parents=True, exist_ok=True)
            path = _new_folder(root, name or f"{started:%Y%m%d-%H%M%S}")
        except OSError as error:
            raise type(error)(error.errno, f"{error.strerror} (output-dir names another folder)", str(root)) from error
        folder = cls(path, str(run_id), started)
        try:
            write_atomically(folder.path / "README.md", _README.format(folder=str(folder.path)).encode())
        except OSError:
            folder.path.rmdir()
            raise
        return folder

    @classmethod
    def reopen(cls, path: str, run_id: int | str) -> Self:
        """Reopen the folder of an interrupted run: absolute, starting with `~`, or `latest`.

        Raises
        ------
        FileNotFoundError
            If there is no status.json: this is no run folder.
        ValueError
            As `create`.
        """
        folder = _output_root(run_named(path))
        if not (folder / "status.json").is_file():
            raise FileNotFoundError(f"resume: {folder} is no run folder: it has no status.json")
        return cls(folder, str(run_id), datetime.now(UTC))

    def write_status(self, state: Status, reason: str = "") -> None:
        """Write status.json in one step; if no new file can be written, write over the one that is there.

        A full disk and a folder without write permission both leave room for the latter. A reason that the file has no
        room for is cut.

        Raises
        ------
        OSError
            If the file can neither be replaced nor written over.
        """
        ended = None if state == "running" else _timestamp(datetime.now(UTC))
        times = {"run_id": self.run_id, "started": _timestamp(self.started), "ended": ended}
        content = _status_bytes({"state": state, "reason": "", **times}, reason)
        path = self.path / "status.json"
        try:
            write_atomically(path, content)
        except OSError:
            with contextlib.suppress(OSError), path.open("r+b") as file:
                file.write(content)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
                return
            raise

    def write_traceback(self, text: str) -> None:
        """Write traceback.txt: where in the code a run failed."""
        write_atomically(self.path / "traceback.txt", text.encode("utf-8", "replace"))

    def write_config(self, config: Mapping[str, object]) -> None:
        """Write config.json: everything that was used."""
        self._write_json("config.json", config)

    def write_results(self, results: Mapping[str, object]) -> None:
        """Write results.json, which has a mapping `methods` of method name to `MethodResult.to_json()`."""
        self._write_json("results.json", results)

    def read_results(self) -> dict[str, Any]:
        """Read results.json; {} if there is none, ValueError if it is damaged."""
        path = self.path / "results.json"
        return read_json_file(path) if path.is_file() else {}

    def add_results(self, section: str, entries: Mapping[str, object]) -> None:
        """Add entries to a section of results.json."""
        results = self.read_results()
        self.write_results({**results, section: {**results.get(section, {}), **entries}})

    def append_client(self, client: Mapping[str, object]) -> None:
        """Add one client's line to clients.jsonl, not forced to disk: a resumed run writes the file anew."""
        append_lines(self.path / "clients.jsonl", to_json(client, indent=None), forced=False)

    def write_clients(self, clients: Iterable[Mapping[str, object]]) -> None:
        """Write clients.jsonl anew, with entries that were not known when clients answered."""
        lines = "".join(to_json(client, indent=None) + "\n" for client in clients)
        write_atomically(self.path / "clients.jsonl", lines.encode())

    def append_disclosure(self, entries: Sequence[Mapping[str, object]], methods: Sequence[str]) -> None:
        """Add a `DisclosureLedger`'s entries, one line per client and kind of message; `methods` were asked for."""
        context = {"run": self.run_id, "methods": list(methods)}
        lines = [to_json({**context, **entry}, indent=None) for entry in entries]
        append_lines(self.path / DISCLOSURE_FILE, *lines)

    def append_round(self, record: RoundRecord) -> None:
        """Add one round's line to rounds.jsonl.

        Rounds of the same training from this one on, which a run that was killed after its last checkpoint left there,
        are removed before; so is the same round, if there is more to say of it.
        """
        from fedstats_app.report.training_record import read_rounds

        training = (record.stage, record.start)
        if self._last.get(training, record.round) >= record.round:
            kept = [
                line
                for line in read_rounds(self._rounds)
                if (line.stage, line.start) != training or line.round < record.round
            ]
            write_atomically(self._rounds, "".join(line.line() + "\n" for line in kept).encode())
        self._last[training] = record.round
        append_lines(self._rounds, record.line())

    def save_head(
        self,
        name: str,
        head: LinearHead,
        metadata: Mapping[str, str],
        *,
        tuned: Backbone | None = None,
        normalisation: Normalisation = "batch",
    ) -> Path:
        """Write heads/<name>.safetensors; the same head and metadata give the same bytes.

        Parameters
        ----------
        name : str
            The method's lower-case name, or the training's.
        head : LinearHead
            Saved in float32.
        metadata : mapping of str to str
            What is needed to use the head (see :mod:`fedstats_app.report.head_file`).
        tuned : Backbone, optional
            The backbone that was trained with it (`fedstats_app.report.head_file.with_module`): its weights are
            written to heads/<name>.backbone.safetensors and the head's metadata name that file.
        normalisation : {"batch", "groupnorm"}
            Whether the tuned backbone has the architecture's own normalisation layers or GroupNorm for BatchNorm.

        Raises
        ------
        ValueError, TypeError
            As `fedstats_app.report.head_file.head_to_bytes`, or if `name` does not suit a file name.
        """
        from fedstats_app.report.head_file import FILE_KEY, PATH_KEYS, head_to_bytes, tuned_metadata, tuned_state

        if not _NAME.fullmatch(name):
            raise ValueError(
                f"head name must be letters, digits and ._@=()%-, and begin with a letter or digit, got {name!r}"
            )
        path = self.path / "heads" / f"{name}.safetensors"
        entries = {**metadata, **({} if tuned is None else tuned_metadata(name, tuned, normalisation))}
        entries |= {key: without_folders(entries[key]) for key in PATH_KEYS if key in entries}
        content = head_to_bytes(head, entries)
        path.parent.mkdir(exist_ok=True)
        if tuned is not None:  # first, so that no head is without its backbone
            weights = tensors_to_bytes(tuned_state(tuned), {"format": "pt"})
            write_atomically(path.with_name(entries[FILE_KEY]), weights)
        write_atomically(path, content)
        return path

    def _write_json(self, name: str, value: Mapping[str, object]) -> None:
        write_atomically(self.path / name, (to_json(value) + "\n").encode())


def _output_root(output_dir: str) -> Path:
    given = output_dir or DEFAULT_OUTPUT_DIR
    try:
        root = Path(given).expanduser()
    except RuntimeError as error:
        raise ValueError(f"output-dir: {given!r}: {error}") from error
    if not root.is_absolute():
        # Flower runs the app in a folder that depends on which shell started its background process.
        raise ValueError(f"output-dir must be an absolute path or start with ~, got {output_dir!r}")
    if root.exists() and not root.is_dir():
        raise NotADirectoryError(f"output-dir must be a folder, but {root} is a file")
    return root


def _new_folder(root: Path, name: str) -> Path:
    for number in itertools.count(1):
        path = root / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            break
    return path


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
