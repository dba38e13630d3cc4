"""The licence of a backbone's weights, and what it asks of those who use or share what was made with them.

A head is made from a backbone's features and is of no use without it, so that the backbone's terms reach the head. This
is what the model's own files say, or what stands in the tables below; the model's page decides. No torch is imported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Term = Literal["no-derivatives", "non-commercial", "acceptance", "own-terms"]

_SENTENCES: dict[Term, str] = {
    "no-derivatives": "forbids sharing derived work: ask its owners before you pass a head on",
    "non-commercial": "forbids commercial use, and so that of a head made with it",
    "acceptance": "holds after its terms are accepted on the model's page, by every site that uses the model",
    "own-terms": "is its publisher's own: read it before you pass a head on",
}


@dataclass(frozen=True)
class Licence:
    """Under which terms weights may be used.

    Attributes
    ----------
    name : str
        As the source names it, such as ``apache-2.0``; ``unknown`` if no source says; ``none`` for random weights.
    source : str
        Who says so, in words.
    """

    name: str
    source: str = ""
    terms: tuple[Term, ...] = field(default=())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to heed, one sentence each; none for a licence that asks for no more than its text beside a copy."""
        unknown = ("The licence of the backbone's weights is unknown: look at its source.",)
        told = (f"The licence of the backbone's weights, {self.name}, {_SENTENCES[term]}." for term in self.terms)
        return (*(unknown if self.name == UNKNOWN.name else ()), *told)


UNKNOWN = Licence("unknown")
RANDOM_WEIGHTS = Licence("none", "random weights have no owner")

# Models whose terms are more than their licence's name says, or whose files name none: (licence, has a gate).
_BY_NAME = {
    "mahmoodlab/uni": ("cc-by-nc-nd-4.0", True),
    "mahmoodlab/uni2-h": ("cc-by-nc-nd-4.0", True),
    "mahmoodlab/conch": ("cc-by-nc-nd-4.0", True),
    "paige-ai/virchow": ("apache-2.0", True),
    "paige-ai/virchow2": ("cc-by-nc-nd-4.0", True),
    "owkin/phikon": ("owkin-non-commercial", False),
    "owkin/phikon-v2": ("owkin-non-commercial", False),
    "bioptimus/h-optimus-0": ("apache-2.0", True),
    "bioptimus/h-optimus-1": ("cc-by-nc-nd-4.0", True),
    "prov-gigapath/prov-gigapath": ("apache-2.0", True),
}
# Whole families of the hub, by the beginning of the name.
_BY_FAMILY = {
    "facebook/dinov2": ("apache-2.0", False),
    "facebook/dinov3": ("dinov3-license", True),
    "google/siglip": ("apache-2.0", False),
    "google/vit-": ("apache-2.0", False),
}
_NON_COMMERCIAL = re.compile(r"(^|-)nc(-|$)|non-?commercial|research|amlr")
_ACCEPTANCE = re.compile(r"^(dinov3|gemma|llama)")
_STANDARD = re.compile(r"apache-2\.0|mit|bsd.*|isc|unlicense|cc0-1\.0|cc-by.*|mpl-2\.0|[al]?gpl-.*")


def licence_named(name: str | None, source: str, *, gated: bool = False) -> Licence:
    """Return a licence by an identifier such as the hub's, with the terms that the name tells.

    "", None, ``other`` and ``unknown`` are unknown; ``gated`` says that terms are accepted before weights are given.
    """
    plain = (name or "").strip().strip("\"'").lower()
    unknown = plain in ("", "other", "unknown")
    told: dict[Term, bool] = {
        "no-derivatives": re.search(r"(^|-)nd(-|$)", plain) is not None,
        "non-commercial": _NON_COMMERCIAL.search(plain) is not None,
        "acceptance": gated or _ACCEPTANCE.match(plain) is not None,
        "own-terms": not unknown and not _STANDARD.fullmatch(plain),
    }
    return Licence(UNKNOWN.name if unknown else plain, source, tuple(term for term, holds in told.items() if holds))


def licence_of_hub_name(repository: str) -> Licence:
    """Look a model of the hub up in the tables above, by its name; unknown if it is not there."""
    plain = repository.partition("@")[0].lower()
    found = _BY_NAME.get(plain) or next((one for start, one in _BY_FAMILY.items() if plain.startswith(start)), None)
    return licence_named(found[0], "the table of this app", gated=found[1]) if found else UNKNOWN


def licence_of_card(folder: Path) -> Licence:
    """Read the licence from the front matter of a model's ``README.md``; unknown if there is none.

    ``license_name`` is taken where ``license`` says ``other``; keys that begin with ``extra_gated`` tell of a gate.
    """
    try:
        text = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return UNKNOWN
    matter = re.match(r"\ufeff?---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    if matter is None:
        return UNKNOWN
    # `key: value`, or a list of which the first is taken.
    values = dict(re.findall(r"^(license|license_name):[ \t]*(?:\r?\n- *)?(.+?)\s*$", matter[1], re.MULTILINE))
    gated = re.search(r"^extra_gated", matter[1], re.MULTILINE) is not None
    name = values.get("license", "")
    other = name in ("", "other")
    return licence_named(values.get("license_name", "") if other else name, "the model's README.md", gated=gated)


def first_known(*licences: Licence) -> Licence:
    """Return the first licence that has a name, with the terms that any of them tells; else unknown."""
    known = next((one for one in licences if one.name != UNKNOWN.name), UNKNOWN)
    told = {term for one in licences for term in one.terms}
    return Licence(known.name, known.source, tuple(term for term in _SENTENCES if term in told))
