"""Protection against a malicious server: sites sign their keys and the survivors, with keys that the others know.

Each party masks with all others. So many signatures are needed that two sets of survivors would have an honest party
in common, and an honest party signs one set only (Bonawitz et al. 2017, section 6.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedstats_app.secure.graph import CORRUPT, MOST_COMPLETE
from fedstats_app.secure.party import Unsafe
from fedstats_app.secure.plan import Plan


@dataclass(frozen=True)
class Peers:
    """Sites that may take part.

    Attributes
    ----------
    own : Ed25519PrivateKey
        This site's.
    allowed : frozenset of bytes
        Public keys of all sites, 32 bytes each.
    """

    own: Ed25519PrivateKey
    allowed: frozenset[bytes]

    @classmethod
    def read(cls, key: Path, peers: Path) -> Self:
        """Read a private key in PEM, and a text file with a site per line, whose last word is the public key in hex.

        Raises
        ------
        OSError, ValueError
            If a file cannot be read or has another format.
        """
        own = load_pem_private_key(key.read_bytes(), None)
        lines = peers.read_text(encoding="utf-8").splitlines()
        allowed = frozenset(bytes.fromhex(line.split()[-1]) for line in lines if line.strip())
        if not isinstance(own, Ed25519PrivateKey) or any(len(key) != 32 for key in allowed):
            raise ValueError("secure-key must be an Ed25519 key, and secure-peers name public keys of 32 bytes")
        return cls(own, allowed)

    @property
    def public(self) -> bytes:
        """The public key."""
        return self.own.public_key().public_bytes_raw()

    def check_entries(self, plan: Plan, question: str) -> None:
        """Refuse a party that is no peer, takes part twice, or did not sign its entry for this question.

        Raises
        ------
        Unsafe
            In these cases, and with too many parties for all to mask with all.
        """
        signers = [party.signer for party in plan.parties]
        if len(plan.parties) > MOST_COMPLETE:
            raise Unsafe(f"among peers at most {MOST_COMPLETE} clients take part, got {len(plan.parties)}")
        if not set(signers) <= self.allowed or len(set(signers)) < len(signers):
            raise Unsafe("a party of this run is not among this node's secure-peers, or takes part twice")
        if not all(
            _is_signed(party.signer, party.signature, party.signed_by(plan.nonce, question)) for party in plan.parties
        ):
            raise Unsafe("the entry of a party is not signed by it")

    def check_agreed(self, plan: Plan, survivors: Sequence[int], content: bytes, signatures: Sequence[bytes]) -> None:
        """Refuse survivors if too few of them have signed.

        Parameters
        ----------
        plan, survivors
            The run's, and the round's.
        content : bytes
            Signed content, which names the survivors.
        signatures : sequence of bytes
            One for each survivor; invalid ones do not count.

        Raises
        ------
        Unsafe
            If another list could have as many.
        """
        number = len(plan.parties)
        needed = (number + int(CORRUPT * number)) // 2 + 1
        pairs = zip(survivors, signatures, strict=False)
        found = sum(_is_signed(plan.parties[party].signer, signature, content) for party, signature in pairs)
        if found < needed:
            raise Unsafe(f"{needed} clients must have signed the list of survivors, got {found}")


def _is_signed(signer: bytes, signature: bytes, content: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True
