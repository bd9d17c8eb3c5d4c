"""Tokens of people and programs: who asks, and whether the role may. Compared in constant time, by hashes only."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from core.config import TokenConfig

LOCAL = "local"  # who acts where there are no tokens
LONGEST_TOKEN = 4096


class Tokens:
    """The configured tokens."""

    def __init__(self, tokens: Sequence[TokenConfig]) -> None:
        self._known = [(bytes.fromhex(one.sha256), one) for one in tokens]

    @property
    def asked(self) -> bool:
        """True where a token is needed."""
        return bool(self._known)

    def holder(self, authorization: str | None) -> TokenConfig | None:
        """Whose token the header `Authorization: Bearer ...` carries, None where it is nobody's. All are compared, so that the
        time taken tells nothing."""
        kind, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if kind.lower() != "bearer" or not 0 < len(token) <= LONGEST_TOKEN:
            return None
        own = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, one in self._known:
            if hmac.compare_digest(own, known):
                found = one
        return found
