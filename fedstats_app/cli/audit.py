"""`fedstats audit`: a run checked from its folder and the sites' own records; neither torch nor this app's solvers."""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedstats_app.cli.terminal import printable
from fedstats_app.secure.account import ROUNDING, composed, epsilon_of, fits
from fedstats_app.storage.files import to_json
from fedstats_app.storage.json_digest import read_json_file, read_json_lines

# Of a number of a head, whose rows have length 1: both are float64 solves of the same system.
TOLERANCE = 1e-4
# With other options Fed3R solves another system than this one's, the plain ridge; variants have names of their own.
_PLAIN = {"fed3r-between-class": True, "fed3r-solver": "cholesky"}

Array = NDArray[np.float64]
Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes
    ----------
    what : str
        In a few words.
    state : str
        "ok", "WRONG", or "-" for what is only told or cannot be checked.
    found : str
        In a sentence.
    """

    what: str
    state: str
    found: str


def audit(arguments: argparse.Namespace) -> int:
    """Print a line for each finding; 1 if something is wrong.

    Raises
    ------
    FileNotFoundError, ValueError
        If the folder is no run's, or a file of it is damaged.
    """
    run = Run(Path(arguments.run_folder).expanduser())
    findings = [*run.findings(), *run.of_sites([Path(one).expanduser() for one in arguments.site])]
    if arguments.json:
        print(to_json({"folder": str(run.folder), "findings": [asdict(one) for one in findings]}))
    else:
        for one in findings:
            print(f"{one.state:5}  {one.what}: {one.found}")
    return 1 if any(one.state == "WRONG" for one in findings) else 0


class Run:
    """What a run folder says; every file of it has a digest, which is checked when it is read.

    Parameters
    ----------
    folder : Path
        Of a run, or of `fedstats remove`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
        self.config, self.results = read_json_file(folder / "config.json"), read_json_file(folder / "results.json")
        self.clients = read_json_lines(folder / "clients.jsonl")
        self.sent = read_json_lines(folder / "disclosure.jsonl") if (folder / "disclosure.jsonl").exists() else []
        self.merged = {one["client"] for one in self.clients if one["outcome"] == "merged"}
        self.id, self.settings = str(self.status["run_id"]), self.config["run_config"]
        self.sums, about = _tensors(folder / "statistics.safetensors")
        self.summed: list[dict[str, Any]] = json.loads(about.get("clients", "[]"))
        self.specs: list[dict[str, Any]] = json.loads(about.get("specifications", "[]"))

    def findings(self) -> Iterator[Finding]:
        """Check what the folder says by itself."""
        state = self.status["state"]
        yield Finding("run", "ok" if state == "completed" else "-", f"{self.id}, {state}")
        counted, said = Counter(one["outcome"] for one in self.clients), self.results["num_clients_merged"]
        others = "".join(f", {number} {kind}" for kind, number in sorted(counted.items()) if kind != "merged")
        yield _checked("who took part", said == len(self.merged), f"{len(self.merged)} clients merged{others}")
        yield from self._left()
        if not self.sums:
            yield Finding("sum", "-", "not kept (noise, or save-statistics), so neither it nor heads can be checked")
        else:
            yield from self._of_sum()
        if not (promise := self.promise):
            yield Finding("epsilon", "-", "none: no noise was added, sums and heads are as the data gave them")
            return
        epsilon, delta, mu = promise["epsilon"], promise["delta"], promise["mu"]
        found = f"{epsilon:g} at delta {delta:.2g} for one {promise['unit']} of {promise['num_samples']:,}, mu {mu:.4g}"
        yield _checked("epsilon", fits([mu], epsilon, delta), found)

    @property
    def promise(self) -> Mapping[str, Any]:
        """What the run says of its noise; nothing for a run without."""
        said = self.results.get("differential_privacy")
        return said if isinstance(said, Mapping) else {}

    def _left(self) -> Iterator[Finding]:
        sizes, kinds = Counter[int](), set()
        asked = {one["client"] for one in self.clients}
        for one in (line for line in self.sent if line["run"] == self.id and line["client"] in asked):
            sizes[one["client"]] += one["bytes"]
            kinds.add(one["message"])
        if not sizes:
            yield Finding("what left each site", "-", "no disclosure.jsonl of this run here")
            return
        unseen = self.merged - sizes.keys()
        found = f"{min(sizes.values()):,} to {max(sizes.values()):,} bytes each, by {', '.join(sorted(kinds))}"
        yield _checked(
            "what left each site", not unseen, f"{found}{f'; nothing of {sorted(unseen)}' if unseen else ''}"
        )

    def _of_sum(self) -> Iterator[Finding]:
        own = {one["client"] for one in self.summed if one["run"] == self.id}
        number, secure = int(self.sums["0.class-counts"].sum()), self.settings.get("secure-sums", "off") != "off"
        found = f"{number:,} samples of {len(self.summed)} clients{', under masks' if secure else ''}"
        said = {one["num_examples"] for one in self.results["methods"].values()}
        yield _checked("sum", own == self.merged and said <= {number}, found)
        if "removed" in self.config:
            yield self._of_removal()
        for name, entry in self.results["methods"].items():
            weight, parameters = _tensors(self.folder / "heads" / f"{name}.safetensors")[0], entry["parameters"]
            expected = self._solved(name, parameters)
            if expected is None or "weight" not in weight:
                yield Finding(f"head {name}", "-", "is not solved again here")
                continue
            off = float(np.abs(weight["weight"] - expected).max())
            yield _checked(f"head {name}", off <= TOLERANCE, f"off by {off:.1e} at most from what the sum gives")

    def _of_removal(self) -> Finding:
        """Check that the sums are those of the old folder less what the removed client sent."""
        what, old = f"removal of {self.config['removed']}", Path(self.config["removed_from"])
        before, about = _tensors(old / "statistics.safetensors")
        present = {(one["run"], one["client"]) for one in self.summed}
        gone = [one for one in json.loads(about.get("clients", "[]")) if (one["run"], one["client"]) not in present]
        kept = [old / "clients" / f"{one['client']}-{one['digest'][:16]}.safetensors" for one in gone]
        if not gone or not all(path.exists() for path in kept):
            return Finding(what, "-", "the old folder is gone, or does not keep what the client sent")
        sums, size = before["0.class-sums"] - self.sums["0.class-sums"], np.abs(before["0.class-sums"]).max()
        for path in kept:
            rows = _tensors(path)[0]
            np.subtract.at(sums, rows["0.row-class-ids"], rows["0.row-sums"])
        off = float(np.abs(sums).max() / size)
        return _checked(what, off <= 1e-9, f"the sum is that of before less {len(gone)} clients, within {off:.0e}")

    def _solved(self, name: str, parameters: Mapping[str, float]) -> Array | None:
        """Return a head's unit rows from the sums; None for methods that are not solved here."""
        plain = [place for place, one in enumerate(self.specs) if one["feature-map"] == {"kind": "identity"}]
        options = {key: self.settings.get(key, usual) for key, usual in _PLAIN.items()}
        if not plain or name not in ("fedncm", "fed3r") or (name == "fed3r" and options != _PLAIN):
            return None
        sums, counts = self.sums[f"{plain[0]}.class-sums"], self.sums[f"{plain[0]}.class-counts"]
        if name == "fedncm":
            return _unit(sums / np.maximum(counts, 1)[:, None])
        dim = sums.shape[1]
        gram = np.zeros((dim, dim))
        gram[np.triu_indices(dim)] = self.sums[f"{plain[0]}.gram"]
        gram += np.triu(gram, 1).T
        return _unit(np.linalg.solve(gram + parameters["ridge_lambda"] * np.eye(dim), sums.T).T)

    def of_sites(self, folders: Sequence[Path]) -> Iterator[Finding]:
        """Compare with what sites wrote down themselves: bytes, digests, and over whom they were summed."""
        identities: list[set[str]] = []
        sums: list[set[str]] = []
        # Who was lost after its words had come has no record of the sum.
        unmasking = {one["client"] for one in self.clients if one["client"] in self.merged and not one["warning"]}
        records = [(folder, _records_of(folder, self.id)) for folder in folders]
        for folder, found_there in records:
            if not found_there:
                what = f"site {printable(str(folder), 60)}"
                yield Finding(what, "WRONG", "its records have nothing of this run, or are not there")
        for path, alone in ((path, len(found_there) == 1) for _, found_there in records for path in found_there):
            what, sent = f"site {printable(str(path.parent if alone else path), 60)}", _read_sent(path)[self.id]
            own = {(kind, digest) for kind, digest in sent.items() if kind.startswith("query.")}
            alike = {one["client"] for one in self.sent if (one["message"], one.get("sha256")) in own}
            same = [client for client in alike if own == self._digests(client)]
            found = f"{sent['bytes']:,} bytes of arrays, as client {same[0]}" if same else "no client sent what it did"
            yield _checked(what, len(same) == 1, found)
            facts = _facts_of(path.with_name(f"ledger-{path.stem.removeprefix('sent-')}.sqlite"))
            if self.promise:
                yield self._charged(what, facts)
            if len(same) == 1 and same[0] in unmasking and self.settings.get("secure-sums", "off") != "off":
                own_names, known = _sums_of(facts)
                identities.append(own_names)
                sums.append({json.dumps(one) for one in known if len(one) == len(self.merged)})
        if sums:
            common = [json.loads(one) for one in set.intersection(*sums)]
            agreed = any(all(names & set(one) for names in identities) for one in common)
            yield _checked("sites' own records of the sum", agreed, f"all were summed over the same {len(self.merged)}")

    def _charged(self, site: str, facts: Mapping[str, str]) -> Finding:
        """Check that a site wrote down no more for this run than the run says it told."""
        own = [float(value) for name, value in facts.items() if name.startswith(f"dp-of-run|{self.id}|")]
        every = [float(json.loads(value)[1]) for name, value in facts.items() if name.startswith("dp-spent|")]
        delta, what = self.promise["delta"], f"epsilon of {site.removeprefix('site ')}"
        if not own:
            return Finding(what, "WRONG", "its records have no noise of this run")
        run, total = (epsilon_of(composed(mus), delta) for mus in (own, every))
        found = f"{run:.4g} in this run at delta {delta:.2g}, {total:.4g} in all"
        return _checked(what, composed(own) <= self.promise["mu"] * (1 + ROUNDING), found)

    def _digests(self, client: int) -> set[tuple[str, str]]:
        of_client = [one for one in self.sent if one["client"] == client and one["run"] == self.id and "sha256" in one]
        return {(one["message"], one["sha256"]) for one in of_client if one["message"].startswith("query.")}


def _checked(what: str, is_right: bool, found: str) -> Finding:
    return Finding(what, "ok" if is_right else "WRONG", found)


def _unit(rows: NDArray[Any]) -> Array:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Array = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return unit


def _tensors(path: Path) -> tuple[Tensors, dict[str, str]]:
    """Read a safetensors file and its header; nothing where there is none."""
    if not path.exists():
        return {}, {}
    try:
        with safe_open(path, "np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _records_of(folder: Path, run: str) -> list[Path]:
    """Find the files in which nodes with this state-dir have written down what they sent in a run."""
    return [path for path in sorted(folder.glob("sent-*.json")) if run in _read_sent(path)]


def _read_sent(path: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _sums_of(facts: Mapping[str, str]) -> tuple[set[str], list[list[str]]]:
    """Find in a node's ledger its identities, one for each version of its data, and over whom these were summed."""
    names = {facts[name] for name in facts if name.startswith("secure-identity|")}
    kinds = ("secure-sums|sums|", "dp-survivors|")
    return names, [json.loads(facts[name]) for name in facts if name.startswith(kinds)]


def _facts_of(ledger: Path) -> dict[str, str]:
    if not ledger.exists():
        return {}
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        return dict(connection.execute("select name, value from fact").fetchall())
