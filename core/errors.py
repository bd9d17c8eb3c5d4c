"""Every error that Greylag raises on purpose.

GreylagError
├── BadInput          what the user gave is wrong: one sentence, exit status 2
│   └── ConfigError   the same, in a configuration or policy file
├── SourceError       an exporter's page or a log could not be read; has a named reason
├── Refused           a door (fleet, scheduler, owner) said no; has a named reason
└── Unavailable       a door did not answer in time; worth another try
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_QUOTE = 60
PHRASES = ("a ", "an ", "the ", "no ", "nothing", "text that", "YAML ")


def quote(value: object) -> str:
    """`value` as it is shown to people: at most 60 characters, so that hostile input cannot flood a log."""
    text = repr(value)
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 1] + "…"


def shown(given: object) -> str:
    """What was given: a phrase that describes it (`an unknown key`, `no such file`) as it is, a value quoted."""
    if isinstance(given, str) and given.startswith(PHRASES):
        return given[:LONGEST_QUOTE]
    return quote(given)


def nearest(word: str, allowed: Iterable[str]) -> str:
    """`, did you mean 'x'?` where something close is allowed, else an empty string."""
    close = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.7)
    return f", did you mean {close[0]!r}?" if close else ""


class GreylagError(Exception):
    """Base of all errors raised on purpose."""


class BadInput(GreylagError):
    """One sentence: where, which key, what was given, what is allowed."""

    def __init__(self, where: str, key: str, given: object, allowed: str) -> None:
        self.where, self.key, self.given, self.allowed = where, key, given, allowed
        at = f"{where}: {key}" if key else where
        super().__init__(f"{at}: got {shown(given)}, {allowed}")


class ConfigError(BadInput):
    """A configuration, inventory, policy or scenario file breaks its schema."""


class SourceError(GreylagError):
    """A page or log could not be read. `reason` comes from a closed list (`core.reasons.SCRAPE_REASONS`)."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else reason)


class Refused(GreylagError):
    """A door refused an operation; `reason` is the door's own named reason."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else reason)


class Unavailable(GreylagError):
    """A door did not answer in time. Nothing is known about whether it acted."""
