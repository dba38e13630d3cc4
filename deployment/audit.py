"""Check a run by one file that shares no code with the app: `python deployment/audit.py RUN [--site STATE_DIR]`.

From the run folder and the sites' own records: who took part, what left each site, the sum and its heads, and epsilon.
"""

import argparse
import bisect
import json
import math
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Methods that are solved again, from what, and by which settings: with others they solve other systems.
_SOLVED: dict[str, tuple[str, dict[str, object]]] = {
    "fedncm": ("class-sums", {}),
    "fedcof": ("row-sums", {"fedcof.between-class": False, "means-per-class": 1}),
    "fed3r": ("gram", {"fed3r.between-class": True, "fed3r.solver": "cholesky"}),
    "fedcgs": ("gram", {"fedcgs.covariance": "within"}),
}
_DTYPES = {"U8": "u1", "I64": "<i8", "F32": "<f4", "F64": "<f8"}
_STATES = {True: "ok", False: "WRONG", None: "-"}
Array = NDArray[Any]
Finding = tuple[str, bool | None, str]  # the subject, whether it is right (None: not checked), and a sentence


def main(words: Sequence[str] | None = None) -> int:
    """Print a line for each finding; return 1 if one is wrong, 2 if the folder is no run's or is damaged."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_folder", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--site", action="append", default=[], type=Path, metavar="FOLDER", help="a site's state-dir")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    arguments = parser.parse_args(words)
    try:
        run = Run(arguments.run_folder)
        findings = [*run.findings(), *run.of_sites(arguments.site)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        print(f"audit: {arguments.run_folder} is damaged: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        entries = [{"what": subject, "state": _STATES[right], "found": found} for subject, right, found in findings]
        print(json.dumps({"folder": str(run.folder), "findings": entries}, indent=2))
    for subject, is_right, found in [] if arguments.json else findings:
        line = f"{_STATES[is_right]:5}  {subject}: {found}"
        print("".join(character if character.isprintable() else "?" for character in line))
    return int(any(is_right is False for _, is_right, _ in findings))


class Run:
    """What a run folder says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.status = folder, json.loads((folder / "status.json").read_bytes())
        self.config, self.results = (_read(folder / name)[0] for name in ("config.json", "results.json"))
        self.clients, sent = (_read(folder / name) for name in ("clients.jsonl", "disclosure.jsonl"))
        self.id, asked = str(self.status["run_id"]), {one["client"] for one in self.clients}
        self.sent = [one for one in sent if one["run"] == self.id and one["client"] in asked]
        self.merged = {one["client"] for one in self.clients if one["outcome"] == "merged"}
        self.sums, about = _tensors(folder / "statistics.safetensors")
        self.summed = json.loads(about.get("clients", "[]"))
        self.noise = found if isinstance(found := self.results.get("differential_privacy"), dict) else {}
        self.masked = self.config["run_config"].get("secure-sums", "off") != "off"

    def findings(self) -> Iterator[Finding]:
        """Check what the folder says by itself."""
        yield "run", self.status["state"] == "completed" or None, f"{self.id}, {self.status['state']}"
        outcomes = sorted(Counter(one["outcome"] for one in self.clients).items())
        found = ", ".join(f"{number} clients {outcome}" for outcome, number in outcomes)
        yield "who took part", self.results["num_clients_merged"] == len(self.merged), found
        sizes, kinds = Counter[int](), ", ".join(sorted({one["message"] for one in self.sent}))
        for one in self.sent:
            sizes[one["client"]] += one["bytes"]
        least, most = min(sizes.values(), default=0), max(sizes.values(), default=0)
        missing = f"; nothing of {gone}" if (gone := sorted(self.merged - sizes.keys())) else ""
        yield (
            "what left each site",
            not missing if sizes else None,
            f"{least:,} to {most:,} bytes each, by {kinds}{missing}",
        )
        if self.sums:
            yield from self._of_sum()
        else:
            yield "sum", None, "not kept (noise, or save-statistics), so neither it nor heads can be checked"
        if noise := self.noise:
            found = "{epsilon:g} at delta {delta:.2g} for one {unit}, N {num_samples:,}, mu {mu:.4g}; {noise}".format(
                **noise
            )
            yield "epsilon", _delta_of(noise["epsilon"], noise["mu"] * (1 - 1e-9)) <= noise["delta"], found
        else:
            yield "epsilon", None, "none: no noise was added, sums and heads are as the data gave them"

    def _of_sum(self) -> Iterator[Finding]:
        own, number = {one["client"] for one in self.summed if one["run"] == self.id}, self.sums["class-counts"].sum()
        fits = own == self.merged and {one["num_examples"] for one in self.results["methods"].values()} <= {number}
        if "row-counts" in self.sums:
            ids, rows, counts = (self.sums[name] for name in ("row-class-ids", "row-counts", "class-counts"))
            fits = fits and np.array_equal(np.bincount(ids, rows, len(counts)), counts)
        yield "sum", fits, f"{number:,} samples of {len(self.summed)} clients{', under masks' if self.masked else ''}"
        kept = [self.folder / "clients" / f"{one['client']}-{one['digest'][:16]}.safetensors" for one in self.summed]
        if kept and all(path.exists() for path in kept):
            left = {name: one.copy() for name, one in self.sums.items() if name in ("class-sums", "gram")}
            off = _left_over(left, [_tensors(path)[0] for path in kept], self.sums)
            yield "kept clients", off <= 1e-9, f"the sum is that of {len(kept)} clients' own files, within {off:.0e}"
        if "removed" in self.config:
            yield self._of_removal()
        for name, entry in self.results["methods"].items():
            expected, head = self._solved(name, entry), _tensors(self.folder / "heads" / f"{name}.safetensors")[0]
            if not expected or "weight" not in head:
                yield f"head {name}", None, "is not solved again here"
                continue
            there = head["present"] > 0
            off = max(_off(head[key][there] - one[there], one[there]) for key, one in expected.items())
            # Both are float64 solves of the same system.
            yield f"head {name}", off <= 1e-4, f"off by {off:.1e} at most from what the sum gives"

    def _of_removal(self) -> Finding:
        subject, old = f"removal of {self.config['removed']}", Path(self.config["removed_from"])
        before, about = _tensors(old / "statistics.safetensors")
        gone = [one for one in json.loads(about.get("clients", "[]")) if one not in self.summed]
        kept = [_tensors(old / "clients" / f"{one['client']}-{one['digest'][:16]}.safetensors")[0] for one in gone]
        if not gone or not all(kept):
            return subject, None, "the old folder is gone, or does not keep what the client sent"
        left = {name: before[name] - one for name, one in self.sums.items() if name in ("class-sums", "gram")}
        off = _left_over(left, kept, before)
        return subject, off <= 1e-9, f"the sum is that of before less {len(gone)} clients, within {off:.0e}"

    def _solved(self, name: str, entry: dict[str, Any]) -> dict[str, Array]:
        """Solve for a head's weight, and its bias if it has one; for nothing where that is not done here."""
        need, usual = _SOLVED.get(name, ("", {}))
        if need not in self.sums or any(self.config["run_config"].get(key, one) != one for key, one in usual.items()):
            return {}
        sums, counts = self.sums["class-sums"], self.sums["class-counts"]
        means, dim, parameters = sums / np.maximum(counts, 1)[:, None], sums.shape[1], entry["parameters"]
        if name == "fedncm" or (name == "fedcof" and math.isinf(float(parameters["shrinkage"]))):
            return {"weight": _unit(means)}
        if name == "fedcof":
            ids, numbers, rows = (self.sums[f"row-{one}"] for one in ("class-ids", "counts", "sums"))
            off_mean, total, weights = rows / numbers[:, None] - means[ids], sums.sum(0), np.maximum(counts - 1, 0)
            of_row = (weights / np.maximum(np.bincount(ids, minlength=len(counts)) - 1, 1))[ids] * numbers
            gram = off_mean.T @ (of_row[:, None] * off_mean) + np.outer(total, total) / counts.sum()
            ridge = parameters["shrinkage"] * weights.sum() * np.eye(dim)
            return {"weight": _unit(np.linalg.solve(gram + ridge, sums.T).T)}
        gram = np.zeros((dim, dim))
        gram[np.triu_indices(dim)] = self.sums["gram"]
        gram += np.triu(gram, 1).T
        if name == "fed3r":
            return {"weight": _unit(np.linalg.solve(gram + parameters["ridge_lambda"] * np.eye(dim), sums.T).T)}
        within = (gram - sums.T @ means) / (counts.sum() - (counts > 0).sum())
        within += parameters["shrinkage"] * np.trace(within) / dim * np.eye(dim)
        weight = np.linalg.solve(within, means.T).T
        return {"weight": weight, "bias": np.log(np.maximum(counts, 1) / counts.sum()) - (weight * means).sum(1) / 2}

    def of_sites(self, folders: list[Path]) -> Iterator[Finding]:
        """Compare with what sites wrote down themselves: bytes, digests, and over whom they were summed."""
        # Who was lost after its words had come has no record of the sum.
        unmasking = {one["client"] for one in self.clients if one["client"] in self.merged and not one["warning"]}
        # By client what it sent; and of sites their identities, and who was summed.
        listed, agreed, known = defaultdict[int, set[object]](set), [], set[int]()
        for one in self.sent:
            listed[one["client"]] |= {(one["message"], one["sha256"])} if "sha256" in one else set()
        for folder in folders:
            found = {path: json.loads(path.read_bytes()).get(self.id) for path in sorted(folder.glob("sent-*.json"))}
            records = {path: sent for path, sent in found.items() if sent}
            if not records:
                yield f"site {folder}", False, "its records have nothing of this run, or are not there"
            for path, sent in records.items():
                name, facts = str(folder if len(records) == 1 else path), _facts_beside(path)
                size, own = sent.pop("bytes"), set(sent.items())
                same = [client for client, digests in listed.items() if digests == own]
                known |= set(same)
                yield (
                    f"site {name}",
                    len(same) == 1,
                    f"{size:,} bytes of arrays, as {'client' if same else 'no'} {same}",
                )
                if self.noise:
                    yield f"epsilon of {name}", *self._charged(facts)
                if len(same) == 1 and same[0] in unmasking and self.masked:
                    own = {one for key, one in facts.items() if key.startswith("secure-identity|")}
                    over = {
                        _parties(one) for key, one in facts.items() if key.startswith(("secure-set|", "dp-survivors|"))
                    }
                    agreed.append((own, {one for one in over if len(one) == len(self.merged)}))
        if strangers := sorted(self.merged - known):
            found = f"{len(strangers)} of {len(self.merged)} clients in the sum are of no site named by --site"
            yield "who they are", None, f"{found}, and may be anyone: {strangers[:10]}"
        if agreed:
            common = set.intersection(*(over for _, over in agreed))
            fits = any(all(own & one for own, _ in agreed) for one in common)
            yield "sites' own records of the sum", fits, f"all were summed over the same {len(self.merged)}"

    def _charged(self, facts: dict[str, str]) -> tuple[bool, str]:
        """Check that a site wrote down noise for this run, and no more than the run says it told."""
        run = math.hypot(*(float(one) for key, one in facts.items() if key.startswith(f"dp-of-run|{self.id}|")))
        ever = math.hypot(*(json.loads(one)[1] for key, one in facts.items() if key.startswith("dp-spent|")))
        delta, found = self.noise["delta"], f"{_epsilon_of(run, self.noise['delta']):g} in this run"
        found += f" at delta {delta:.2g}, {_epsilon_of(ever, delta):g} in all"
        return 0 < run <= self.noise["mu"] * (1 + 1e-9), found


def _parties(text: str) -> frozenset[str]:
    """Read the parties of a sum from a site's record of it."""
    found = json.loads(text)
    return frozenset(found["parties"] if isinstance(found, dict) else found)


def _delta_of(epsilon: float, mu: float) -> float:
    """Return Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu) (Balle and Wang 2018, theorem 8)."""
    near, far = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    if far < 30:
        below = math.exp(epsilon) * math.erfc(far / math.sqrt(2)) / 2
    else:  # the series of the tail, of which the next term is 2e-8
        below = math.exp(-(near**2) / 2) / math.sqrt(2 * math.pi) / far * (1 - far**-2 + 3 * far**-4)
    return math.erfc(-near / math.sqrt(2)) / 2 - below


def _epsilon_of(mu: float, delta: float) -> float:
    """Return the least whole number of thousandths that is an epsilon for this delta; 0 without any noise."""
    return bisect.bisect_left(range(10**7), -delta, key=lambda step: -_delta_of(step / 1000, mu)) / 1000 if mu else 0.0


def _left_over(left: dict[str, Array], clients: list[dict[str, Array]], beside: dict[str, Array]) -> float:
    """Take what clients sent from sums, and return how much is left, as a share of the largest number beside."""
    for sent in clients:
        np.subtract.at(left["class-sums"], sent["row-class-ids"], sent["row-sums"])
        if "gram" in left and "gram" in sent:
            left["gram"] -= sent["gram"]
        elif "gram" in left:
            means = sent["row-sums"].astype(float) / np.sqrt(sent["row-counts"])[:, None]
            rows = np.concatenate([means, sent.get("within-factor", means[:0]).astype(float)])
            left["gram"] -= (rows.T @ rows)[np.triu_indices(rows.shape[1])] + sent.get("within", 0.0)
    return max(_off(one, beside[name]) for name, one in left.items())


def _off(difference: Array, beside: Array) -> float:
    return float(np.abs(difference).max() / np.abs(beside).max())


def _unit(rows: Array) -> Array:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def _read(path: Path) -> list[dict[str, Any]]:
    """Read JSON objects, one a line or one in all."""
    text = path.read_bytes() if path.exists() or path.suffix == ".json" else b""
    try:
        return [json.loads(one) for one in (text.split(b"\n") if path.suffix == ".jsonl" else [text]) if one]
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _tensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Read a safetensors file and its header; nothing where there is none."""
    data = path.read_bytes() if path.exists() else b"\2" + bytes(7) + b"{}"
    start, found = 8 + int.from_bytes(data[:8], "little"), {}
    about = json.loads(data[8:start])
    for name in about.keys() - {"__metadata__"}:
        first, last = about[name]["data_offsets"]
        numbers = np.frombuffer(data[start + first : start + last], _DTYPES[about[name]["dtype"]])
        found[name] = numbers.reshape(about[name]["shape"])
    return found, about.get("__metadata__", {})


def _facts_beside(path: Path) -> dict[str, str]:
    """Return the facts in the ledger of the node that wrote this file."""
    ledger = path.with_name(f"ledger-{path.stem.removeprefix('sent-')}.sqlite")
    if not ledger.exists():
        return {}
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        return dict(connection.execute("select name, value from fact").fetchall())


if __name__ == "__main__":
    sys.exit(main())
